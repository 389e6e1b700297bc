"""One tensor as a model file stores it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""The ways of storing that we read, by GGUF's names."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor as stored.

    shape: row-major, [out, in] for a matrix. kind: one of KINDS, "Q4_F" (Q4_1 with fp32 numbers: 4 bytes scale, 4 bytes minimum, 16 of
    nibbles) or "I8" (rows of an fp32 scale and int8 values). data: read-only view of the mapped file; for F32 and F16 of that dtype and of
    `shape`, else uint8 with the last axis in bytes.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    data: np.ndarray

    def dequantize(self) -> np.ndarray:
        """The values, fp32 of `shape`. A copy, except for F32."""
        if self.kind == "I8":
            return self.data[:, 4:].view(np.int8) * self.data[:, :4].copy().view(np.float32)
        if self.kind == "Q4_F":
            blocks = self.data.reshape(-1, 24)
            scale, minimum = np.split(blocks[:, :8].copy().view(np.float32), 2, axis=1)
            codes = np.concatenate([blocks[:, 8:] & 15, blocks[:, 8:] >> 4], axis=1)
            return (codes * scale + minimum).reshape(self.shape)
        return dequantize(self.data, GGMLQuantizationType[self.kind]).reshape(self.shape)


def stored_note(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    """A line for the operator: how the matrices among the tensors, given as (kind, shape), are stored, most weights first."""
    counts: Counter[str] = Counter()
    for kind, shape in tensors:
        if len(shape) > 1:
            counts[kind] += math.prod(shape)
    return "weights: " + ", ".join(f"{count / 1e6:.1f} million in {kind}" for kind, count in counts.most_common())
