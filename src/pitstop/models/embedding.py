"""How a model's hidden states become embeddings, as its files or the operator say. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pitstop.types import Pooling

_SMALLEST = 1e-12
"""Vectors shorter than this are divided by it instead of their length."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """normalize: vectors get the length 1 (L2). dimensions: lengths, beside the model's width, to which its vectors may be cut
    (Matryoshka representations, Kusupati et al. 2022)."""

    pooling: Pooling
    normalize: bool = True
    dimensions: tuple[int, ...] = ()

    def finish(self, pooled: np.ndarray, dimensions: int | None = None) -> np.ndarray:
        """pooled [width] fp32 → the embedding, fp32: its first `dimensions` numbers; normalised, in fp64, always when it was cut."""
        vector = pooled[:dimensions].astype(np.float64)
        if self.normalize or len(vector) < len(pooled):
            vector /= max(float(np.sqrt(np.dot(vector, vector))), _SMALLEST)
        return vector.astype(np.float32)
