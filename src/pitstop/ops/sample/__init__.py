"""What is chosen from logits: the likeliest token, and the likeliest few in order."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Op
from pitstop.ops.sample import ref

__all__ = ["candidates", "greedy"]

_greedy = Op("greedy", ref=ref.greedy)
_candidates = Op("candidates", ref=ref.candidates)


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """logits [rows, vocab] fp32 → ids [rows] int64 of each row's largest, the lowest among equals, as numpy.argmax has it.

    Zeros of either sign are equal, and NaN counts as the largest.
    """
    _check("greedy", logits)
    return _greedy(logits)


def candidates(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [rows, vocab] fp32 → (values fp32, ids int64) [rows, min(k, vocab)] of the k largest, the lower id first among equals.

    What is equal and what is largest is as in `greedy`, whose id is the first.
    """
    _check("candidates", logits)
    if k < 1:
        raise ValueError(f"candidates: k must be positive, not {k}")
    return _candidates(logits, min(k, logits.shape[1]))


def _check(name: str, logits: torch.Tensor) -> None:
    if logits.dim() != 2 or not logits.shape[1]:
        raise ValueError(f"{name}: logits must be [rows, vocab], got {list(logits.shape)}")
