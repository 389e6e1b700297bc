"""The activations by the native kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

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
    return refuse(x=x) or _alone(dispatch.native.gelu_tanh_mul, x)


def gelu_erf(x: torch.Tensor) -> torch.Tensor | Declined:
    return refuse(x=x) or _alone(dispatch.native.gelu_erf_mul, x)


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor | Declined:
    if reason := refuse(x=x):
        return reason
    x = x.contiguous()
    out = dispatch.empty(*x.shape)
    dispatch.native.softcap(x.data_ptr(), *x.shape, cap, out.data_ptr())
    return out


def _gated(kernel: Callable[..., None], gate_up: torch.Tensor) -> torch.Tensor:
    gate_up = strided(gate_up)
    rows, features, row = len(gate_up), gate_up.shape[1] // 2, gate_up.stride(0)
    out = dispatch.empty(rows, features)
    kernel(gate_up.data_ptr(), row, gate_up.data_ptr() + 4 * features, row, rows, features, out.data_ptr())
    return out


def _alone(kernel: Callable[..., None], x: torch.Tensor) -> torch.Tensor:
    """As gates of factors 1, one row of them for all."""
    x = strided(x)
    rows, features = x.shape
    out = dispatch.empty(rows, features)
    kernel(x.data_ptr(), x.stride(0), _ones(features).data_ptr(), 0, rows, features, out.data_ptr())
    return out


@cache
def _ones(features: int) -> torch.Tensor:
    return torch.ones(features)
