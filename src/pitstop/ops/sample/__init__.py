"""What is chosen from logits: the likeliest token, or one that is drawn."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Op
from pitstop.ops.sample import cpu, ref, triton
from pitstop.ops.sample.draws import ID_BITS, Draw

__all__ = ["draw", "greedy"]

_greedy = Op("greedy", triton=triton.greedy, ref=ref.greedy)
_draw = Op("draw", triton=triton.draw, cpu=cpu.draw, ref=ref.draw)


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """logits [rows, vocab] fp32 → ids [rows] int64 of each row's largest, the lowest among equals, as numpy.argmax has it.

    Zeros of either sign are equal, and NaN counts as the largest.
    """
    _check("greedy", logits)
    return _greedy(logits)


def draw(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """logits [rows, vocab] fp32, draws [rows, 5] fp64, a `draws.Draw` each → ids [rows] int64 of the tokens drawn, as draws.py says.

    Those of the host's sampler (engine/sampler.py), to the bit, by "triton" and by "cpu"; "ref" has another e^x.
    """
    _check("draw", logits)
    if draws.shape != (len(logits), len(Draw._fields)) or draws.dtype is not torch.float64:
        raise ValueError(f"draw: draws must be [{len(logits)}, {len(Draw._fields)}] float64, got {list(draws.shape)} {draws.dtype}")
    return _draw(logits, draws)


def _check(name: str, logits: torch.Tensor) -> None:
    if logits.dim() != 2 or not 0 < logits.shape[1] <= 1 << ID_BITS:
        raise ValueError(f"{name}: logits must be [rows, vocab], of at most {1 << ID_BITS} tokens, got {list(logits.shape)}")
