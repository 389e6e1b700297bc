"""Gated activations."""

from __future__ import annotations

import torch

from pitstop.ops.activation import cpu, ref
from pitstop.ops.dispatch import Op

_silu_mul = Op("silu_mul", cpu=cpu.silu_mul, ref=ref.silu_mul)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [rows, 2 · features] fp32, gates first → gate / (1 + e^-gate) · up, [rows, features] fp32 (SwiGLU, Shazeer 2020)."""
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"silu_mul: gate_up must be [rows, 2 * features], got {list(gate_up.shape)}")
    return _silu_mul(gate_up)
