"""Rotary position embedding (Su et al. 2021)."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Op
from pitstop.ops.rope import cpu, ref

_rotate = Op("rotate", cpu=cpu.rotate, ref=ref.rotate)


def tables(positions: int, dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of position · theta^(-2i/dim), each [positions, dim / 2] fp32, computed in fp64 and rounded once."""
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x [rows, heads, dim] fp32, positions [rows] int32, cos and sin [context, dim / 2] → a new [rows, heads, dim] fp32.

    Rotates the pairs (2i, 2i+1) when `interleaved`, else (i, i + dim/2), by the row's position. On the CPU a position outside the tables
    raises ValueError (native) or IndexError (reference).
    """
    if x.dim() != 3 or cos.shape[1] * 2 != x.shape[2] or cos.shape != sin.shape or positions.shape != x.shape[:1]:
        shapes = ", ".join(str(list(t.shape)) for t in (x, positions, cos, sin))
        raise ValueError(f"rotate: want [rows, heads, dim], [rows], [context, dim / 2] twice, got {shapes}")
    return _rotate(x, positions, cos, sin, interleaved)
