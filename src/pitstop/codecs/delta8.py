"""Baseline: the account's older scheme, eight-bit differences from token to token, anchored in each segment's first token.

delta8 codes the difference to what is stored (closed loop: errors do not add up); delta8-open to what was there (open loop: they do).
"""

from __future__ import annotations

from pitstop.codecs.segmented import Segmented
from pitstop.ops.attention import Layout, Plane

_CLOSED, _OPEN = (Plane(8, "segment", coding) for coding in ("closed", "open"))
CODECS = (Segmented("delta8", Layout(_CLOSED, _CLOSED)), Segmented("delta8-open", Layout(_OPEN, _OPEN)))
