"""Baseline: the account's scheme, one least and one largest value for all the keys, and for all the values, of a head's segment."""

from __future__ import annotations

from pitstop.codecs.segmented import Segmented
from pitstop.ops.attention import Layout, Plane

CODECS = (Segmented("adaptive8", Layout(Plane(8, "segment"), Plane(8, "segment"))),)
