"""Four bits and near: ranges as in int8, the first segment at eight bits for the sake of the sinks, keys and values in Hadamard's basis."""

from __future__ import annotations

from pitstop.codecs.segmented import Segmented
from pitstop.ops.attention import Layout, Plane


def _codec(name: str, keys: int, values: int) -> Segmented:
    return Segmented(name, Layout(Plane(keys, "channel"), Plane(values, "token"), lead=8), rotated="both")


CODECS = (_codec("int4", 4, 4), _codec("k5v4", 5, 4), _codec("k8v4", 8, 4))
