"""Rotations of heads: rotary position embedding (Su et al. 2021), and Hadamard's basis, in which outlier channels share their weight."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Op
from pitstop.ops.rope import cpu, ref, triton

_rotate = Op("rotate", triton=triton.rotate, cpu=cpu.rotate, ref=ref.rotate)
_hadamard = Op("hadamard", triton=triton.hadamard, cpu=cpu.hadamard, ref=ref.hadamard)


def tables(positions: int, frequencies: torch.Tensor, factor: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """factor · cos and factor · sin of position · frequencies, each [positions, dim / 2] fp32, computed in fp64 and rounded once.

    frequencies: [dim / 2] fp64, radians a position.
    """
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies.double()
    return (factor * angles.cos()).float(), (factor * angles.sin()).float()


def rotate(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x [rows, heads, dim] fp32, positions [rows] int32, cos and sin [context, dim / 2] → a new [rows, heads, dim] fp32.

    Rotates the pairs (2i, 2i+1) when `interleaved`, else (i, i + dim/2), by the row's position. A position outside the tables raises
    ValueError (native) or IndexError (reference on the CPU), or gives NaN (Triton).
    """
    if x.dim() != 3 or cos.shape[1] * 2 != x.shape[2] or cos.shape != sin.shape or positions.shape != x.shape[:1]:
        shapes = ", ".join(str(list(t.shape)) for t in (x, positions, cos, sin))
        raise ValueError(f"rotate: want [rows, heads, dim], [rows], [context, dim / 2] twice, got {shapes}")
    return _rotate(x, positions, cos, sin, interleaved)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """x [rows, heads, dim] fp32 → H x / sqrt(dim) of each head, H Sylvester's matrix; dim a power of two. It is its own inverse.

    By the fast transform: sums and differences of elements 1 apart, then 2, 4, … (each rounded once), then one multiplication.
    """
    if x.dim() != 3 or x.shape[2] & (x.shape[2] - 1):
        raise ValueError(f"hadamard: want [rows, heads, dim] with dim a power of two, got {list(x.shape)}")
    return _hadamard(x)
