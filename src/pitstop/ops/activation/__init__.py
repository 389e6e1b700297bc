"""Activations, gated and not, and the soft cap on logits."""

from __future__ import annotations

import torch

from pitstop.ops.activation import cpu, ref, triton
from pitstop.ops.dispatch import Op

_silu_mul = Op("silu_mul", triton=triton.silu_mul, cpu=cpu.silu_mul, ref=ref.silu_mul)
_gelu_tanh_mul = Op("gelu_tanh_mul", triton=triton.gelu_tanh_mul, cpu=cpu.gelu_tanh_mul, ref=ref.gelu_tanh_mul)
_gelu_erf_mul = Op("gelu_erf_mul", triton=triton.gelu_erf_mul, cpu=cpu.gelu_erf_mul, ref=ref.gelu_erf_mul)
_gelu_tanh = Op("gelu_tanh", triton=triton.gelu_tanh, cpu=cpu.gelu_tanh, ref=ref.gelu_tanh)
_gelu_erf = Op("gelu_erf", triton=triton.gelu_erf, cpu=cpu.gelu_erf, ref=ref.gelu_erf)
_softcap = Op("softcap", triton=triton.softcap, cpu=cpu.softcap, ref=ref.softcap)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [rows, 2 · features] fp32, gates first → gate / (1 + e^-gate) · up, [rows, features] fp32 (SwiGLU, Shazeer 2020)."""
    _check("silu_mul", gate_up)
    return _silu_mul(gate_up)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [rows, 2 · features] fp32, gates first → gate / 2 · (1 + tanh(√(2/π) (gate + 0.044715 gate³))) · up, [rows, features] fp32.

    GeGLU (Shazeer 2020) with the tanh form of GELU (Hendrycks and Gimpel 2016).
    """
    _check("gelu_tanh_mul", gate_up)
    return _gelu_tanh_mul(gate_up)


def gelu_erf_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [rows, 2 · features] fp32, gates first → gate / 2 · (1 + erf(gate / √2)) · up, [rows, features] fp32.

    GeGLU with GELU itself (Hendrycks and Gimpel 2016).
    """
    _check("gelu_erf_mul", gate_up)
    return _gelu_erf_mul(gate_up)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """x [rows, features] fp32 → x / 2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), [rows, features] fp32 (Hendrycks and Gimpel 2016)."""
    return _gelu_tanh(x)


def gelu_erf(x: torch.Tensor) -> torch.Tensor:
    """x [rows, features] fp32 → x / 2 · (1 + erf(x / √2)), [rows, features] fp32 (Hendrycks and Gimpel 2016)."""
    return _gelu_erf(x)


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """x [rows, columns] fp32 → cap · tanh(x / cap), [rows, columns] fp32 (Bello et al. 2016; Gemma 2)."""
    if x.dim() != 2 or cap <= 0:
        raise ValueError(f"softcap: x must be [rows, columns] and the cap positive, got {list(x.shape)} and {cap}")
    return _softcap(x, cap)


def _check(name: str, gate_up: torch.Tensor) -> None:
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"{name}: gate_up must be [rows, 2 * features], got {list(gate_up.shape)}")
