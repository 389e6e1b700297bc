"""The activations in plain torch, their inputs and their tolerances."""

from __future__ import annotations

import math

import torch

from pitstop.ops.rowwise import rowwise

TOLERANCE = 4e-7
"""Of silu_mul, relative to each output: e^-gate within 1.1 ulp, and four roundings."""

GELU_TOLERANCE = 3e-5
"""Of gelu_tanh_mul, relative: three roundings in an exponent of up to 104, which e^x turns into relative errors of as many times 2⁻²⁴."""

GELU_ERF_TOLERANCE = 6e-7
"""Of gelu_erf_mul, relative: e^(-gate² / 2) within 1.1 ulp, a polynomial within 4e-8, and roundings of it, two quotients and products."""

CAP_TOLERANCE = 5e-7
"""Of softcap, relative to the cap: tanh errs by 2⁻²² at most, and two roundings."""


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    def one(row: torch.Tensor) -> torch.Tensor:
        gate, up = row.chunk(2, dim=1)
        return gate / (1 + torch.exp(-gate)) * up

    return rowwise(one, gate_up)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    def one(row: torch.Tensor) -> torch.Tensor:
        gate, up = row.chunk(2, dim=1)
        exponent = math.sqrt(8 / math.pi) * (gate + 0.044715 * gate * gate * gate)
        return gate / (1 + torch.exp(-exponent)) * up  # (1 + tanh z) / 2 = 1 / (1 + e^-2z), which does not cancel

    return rowwise(one, gate_up)


def gelu_erf_mul(gate_up: torch.Tensor) -> torch.Tensor:
    def one(row: torch.Tensor) -> torch.Tensor:
        gate, up = row.chunk(2, dim=1)
        return (gate.double() / 2 * torch.special.erfc(gate.double() * -math.sqrt(0.5))).float() * up

    return rowwise(one, gate_up)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return gelu_tanh_mul(torch.cat([x, torch.ones_like(x)], dim=1))


def gelu_erf(x: torch.Tensor) -> torch.Tensor:
    return gelu_erf_mul(torch.cat([x, torch.ones_like(x)], dim=1))


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    return rowwise(lambda row: cap * torch.tanh(row / cap), x)


def make_inputs(seed: int, rows: int, features: int) -> torch.Tensor:
    """gate_up [rows, 2 · features] fp32, gates from very negative to very positive."""
    generator = torch.Generator().manual_seed(seed)
    gate_up = torch.randn(rows, 2 * features, generator=generator)
    gate_up[:, :features] *= 20
    return gate_up
