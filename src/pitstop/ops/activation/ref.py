"""silu_mul in plain torch, its inputs and its tolerance."""

from __future__ import annotations

import torch

from pitstop.ops.rowwise import rowwise

TOLERANCE = 4e-7
"""Relative to each output: e^-gate within 1.1 ulp, and four roundings."""


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    def one(row: torch.Tensor) -> torch.Tensor:
        gate, up = row.chunk(2, dim=1)
        return gate / (1 + torch.exp(-gate)) * up

    return rowwise(one, gate_up)


def make_inputs(seed: int, rows: int, features: int) -> torch.Tensor:
    """gate_up [rows, 2 · features] fp32, gates from very negative to very positive."""
    generator = torch.Generator().manual_seed(seed)
    gate_up = torch.randn(rows, 2 * features, generator=generator)
    gate_up[:, :features] *= 20
    return gate_up
