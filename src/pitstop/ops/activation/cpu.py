"""The activations by the native kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pitstop.ops import dispatch
from pitstop.ops.dispatch import Declined
from pitstop.ops.rows import refuse, strided


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor | Declined:
    return refuse(gate_up=gate_up) or _gated(dispatch.native.silu_mul, gate_up)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor | Declined:
    return refuse(gate_up=gate_up) or _gated(dispatch.native.gelu_tanh_mul, gate_up)


def gelu_erf_mul(gate_up: torch.Tensor) -> torch.Tensor | Declined:
    return refuse(gate_up=gate_up) or _gated(dispatch.native.gelu_erf_mul, gate_up)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor | Declined:
    return gelu_tanh_mul(_with_ones(x))


def gelu_erf(x: torch.Tensor) -> torch.Tensor | Declined:
    return gelu_erf_mul(_with_ones(x))


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor | Declined:
    if reason := refuse(x=x):
        return reason
    x = x.contiguous()
    out = dispatch.empty(*x.shape)
    dispatch.native.softcap(x.data_ptr(), *x.shape, cap, out.data_ptr())
    return out


def _with_ones(x: torch.Tensor) -> torch.Tensor:
    """As gates of factors 1. A copy costs little beside the product that x comes from."""
    return torch.cat([x, torch.ones_like(x)], dim=1)


def _gated(kernel: Callable[..., None], gate_up: torch.Tensor) -> torch.Tensor:
    gate_up = strided(gate_up)
    rows, features = len(gate_up), gate_up.shape[1] // 2
    out = dispatch.empty(rows, features)
    kernel(gate_up.data_ptr(), gate_up.stride(0), rows, features, out.data_ptr())
    return out
