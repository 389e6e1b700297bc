"""One tensor as a model file stores it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")
"""The ways of storing that we read, by GGUF's names."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor as stored.

    shape: row-major, [out, in] for a matrix. kind: one of KINDS. data: read-only view of the mapped file; for F32 and F16 of that dtype
    and of `shape`, else uint8 with the last axis in bytes.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    data: np.ndarray

    def dequantize(self) -> np.ndarray:
        """The values, fp32 of `shape`. A copy, except for F32."""
        return dequantize(self.data, GGMLQuantizationType[self.kind]).reshape(self.shape)
