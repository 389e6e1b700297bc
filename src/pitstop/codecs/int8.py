"""Eight bits: a range for each key channel of a segment, which keeps outlier channels to themselves, and one for each token's values."""

from __future__ import annotations

from pitstop.codecs.segmented import Segmented
from pitstop.ops.attention import Layout, Plane

CODECS = (Segmented("int8", Layout(Plane(8, "channel"), Plane(8, "token"))),)
