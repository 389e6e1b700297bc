"""y = x Wᵀ + b with a weight packed once."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Op
from pitstop.ops.linear import cpu, ref, triton
from pitstop.ops.linear.packing import PackedLinear, Precision, pack, pack_int8, pack_stored

__all__ = ["PackedLinear", "Precision", "accumulate", "linear", "pack", "pack_int8", "pack_stored", "rows"]

_linear = Op("linear", triton=triton.linear, cpu=cpu.linear, ref=ref.linear)
_rows = Op("rows", cpu=cpu.rows, ref=ref.rows)
_accumulate = Op("accumulate", cpu=cpu.accumulate, ref=ref.accumulate)


def linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    """x [rows, in] fp32 → [rows, out] fp32.

    Floating-point kinds: each output is one chain of fused multiply-adds over `in`, ascending (native). Quantised kinds: rows are
    rounded to weight.activations by groups of 32, sums within a group are exact integers, groups are added in order by fused
    multiply-adds. A row that holds an infinity or NaN gives NaN; groups of magnitudes below 2⁻¹⁰⁰ count as zeros. The bias, where the
    weight has one, is added last. Lines (CUDA): see triton.py, x fp16 or bf16 as well.
    """
    if x.dim() != 2 or x.shape[1] != weight.in_features:
        raise ValueError(f"linear: x must be [rows, {weight.in_features}], got {list(x.shape)}")
    return _linear(x, weight)


def rows(weight: PackedLinear, ids: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Rows `ids` [n] int64 of the weight, exactly, times `scale` → [n, in] fp32 (an embedding that shares its matrix with the head).

    Raises IndexError for one outside the matrix.
    """
    return _rows(weight, ids, scale)


def accumulate(y: torch.Tensor, part: torch.Tensor, row: int, column: int) -> None:
    """y[row : row + n, column : column + m] += part [n, m], in place, fp32. y has contiguous rows; what lies outside is not touched."""
    if part.dim() != 2 or y.dim() != 2 or min(row, column) < 0 or row + len(part) > len(y) or column + part.shape[1] > y.shape[1]:
        raise ValueError(f"accumulate: {list(part.shape)} at ({row}, {column}) does not lie within {list(y.shape)}")
    _accumulate(y, part, row, column)
