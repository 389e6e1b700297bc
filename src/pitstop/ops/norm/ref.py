"""The norms in plain torch, their inputs and tolerances."""

from __future__ import annotations

import torch

from pitstop.ops.rowwise import rowwise

TOLERANCE = 2e-6
"""Relative to each output: half the error of a sum of squares over 16 chains, and four roundings."""


LAYER_TOLERANCE = 5e-7
"""Of layer_norm, times |weight| and one more than the row's largest |x - mean| / deviation: four roundings, and sums of several chains."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rowwise(lambda row: row * torch.rsqrt(row.square().mean(dim=-1, keepdim=True) + eps) * weight, x)


def add_rms_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + y
    return total, rms_norm(total, weight, eps)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    return rowwise(lambda row: torch.nn.functional.layer_norm(row, weight.shape, weight, bias, eps), x)


def make_inputs(seed: int, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, width] with one outlier channel of thousands, weight [width], fp32."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator)
    x[:, width // 2] *= 5000
    return x, 1 + 0.3 * torch.randn(width, generator=generator)
