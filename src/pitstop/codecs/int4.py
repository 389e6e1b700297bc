"""Four bits and near: ranges as in int8, the first segment at eight bits for the sake of the sinks, keys in Hadamard's basis.

A rotation shares an outlier channel's range among all channels: at four or five bits a third less KL divergence by the keys' alone, hardly
less by the values' too, and nothing at eight (docs/kv.md).
"""

from __future__ import annotations

from pitstop.codecs.segmented import Segmented
from pitstop.ops.attention import Layout, Plane
from pitstop.types import Rotated


def _codec(name: str, keys: int, values: int, rotated: Rotated) -> Segmented:
    return Segmented(name, Layout(Plane(keys, "channel"), Plane(values, "token"), lead=8), rotated=rotated)


CODECS = (_codec("int4", 4, 4, "keys"), _codec("k5v4", 5, 4, "keys"), _codec("k8v4", 8, 4, "none"))
