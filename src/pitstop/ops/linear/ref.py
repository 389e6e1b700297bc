"""linear in plain torch, its inputs and its tolerance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pitstop.ops.rowwise import rowwise

if TYPE_CHECKING:
    from pitstop.ops.linear import PackedLinear

PANEL = 16
"""Output columns of one panel of a packed weight."""

TOLERANCE = 2.0
"""|y - exact| ≤ TOLERANCE · √in · 2⁻²⁴ · Σ|x||w|: rounding errors of a chain add up like a random walk (Higham and Mary 2019)."""


def linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    if weight.kind == "rows":
        return rowwise(lambda row: row @ weight.data.T, x)
    return rowwise(lambda row: torch.matmul(row, weight.data).transpose(0, 1).flatten(1)[:, : weight.out_features], x)


def make_inputs(seed: int, rows: int, out_features: int, in_features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, in] and weight [out, in], fp32, with a few large activations as real models have them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, in_features, generator=generator)
    x[:, :: max(1, in_features // 3)] *= 100
    return x, torch.randn(out_features, in_features, generator=generator) / in_features**0.5
