"""Sealed segments stored as the tails are: raw16 (fp16) to serve with, raw32 (fp32) to compare with references."""

from __future__ import annotations

import torch

from pitstop.codecs.segmented import Segmented
from pitstop.ops.attention import RAW16, RAW32

CODECS = (Segmented("raw16", RAW16), Segmented("raw32", RAW32, torch.float32))
