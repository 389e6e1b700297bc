"""The rotations by Triton kernels (triton_kernels.py)."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Declined
from pitstop.ops.row_tiles import aligned, refuse, tile

MOST_DIM = 1024


def rotate_constants(dim: int, interleaved: bool) -> dict[str, int | bool]:
    """The constants that `rotate` is compiled with."""
    chosen = tile(dim, MOST_DIM)
    return {"DIM": dim, "COLUMNS": chosen.columns, "HEADS": chosen.rows, "UNIT": chosen.unit, "INTERLEAVED": interleaved}


def hadamard_constants(dim: int) -> dict[str, int | float]:
    """The constants that `hadamard` is compiled with."""
    chosen = tile(dim, MOST_DIM)
    return {"DIM": dim, "DOUBLINGS": dim.bit_length() - 1, "VECTORS": chosen.rows, "UNIT": chosen.unit, "SCALE": dim**-0.5}


def options(dim: int) -> dict[str, int | bool]:
    """What the compiler is told."""
    return {"num_warps": tile(dim, MOST_DIM).warps, "enable_fp_fusion": False}


def rotate(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor | Declined:
    """A position outside the tables gives NaN."""
    if reason := refuse(x=x, cos=cos, sin=sin) or _refuse_dim(x):
        return reason
    if positions.dtype is not torch.int32 or positions.device != x.device:
        return Declined("positions must be int32 beside x")
    from pitstop.ops.rope import triton_kernels

    rows, heads, dim = x.shape
    x, positions, cos, sin = aligned(x), positions.contiguous(), aligned(cos.contiguous()), aligned(sin.contiguous())
    out, chosen = torch.empty(rows, heads, dim, dtype=x.dtype, device=x.device), tile(dim, MOST_DIM)
    if rows:
        triton_kernels.rotate[rows, -(-heads // chosen.rows)](
            x, positions, cos, sin, out, x.stride(0) // chosen.unit, heads, len(cos),
            **rotate_constants(dim, interleaved), **options(dim),
        )  # fmt: skip
    return out


def hadamard(x: torch.Tensor) -> torch.Tensor | Declined:
    if reason := refuse(x=x) or _refuse_dim(x):
        return reason
    from pitstop.ops.rope import triton_kernels

    rows, heads, dim = x.shape
    x, chosen = aligned(x), tile(dim, MOST_DIM)
    out = torch.empty(rows, heads, dim, dtype=x.dtype, device=x.device)
    if rows:
        triton_kernels.hadamard[(-(-rows * heads // chosen.rows),)](
            x, out, x.stride(0) // chosen.unit, rows * heads, heads, **hadamard_constants(dim), **options(dim)
        )
    return out


def _refuse_dim(x: torch.Tensor) -> Declined | None:
    return Declined(f"head_dim {x.shape[2]} is above {MOST_DIM}") if x.shape[2] > MOST_DIM else None
