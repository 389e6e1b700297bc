"""The norms by the native kernels."""

from __future__ import annotations

import torch

from pitstop.ops import dispatch
from pitstop.ops.dispatch import Declined
from pitstop.ops.rows import refuse, strided


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor | Declined:
    if reason := refuse(x=x, weight=weight):
        return reason
    x, weight = strided(x), weight.contiguous()
    heads = x.shape[1] if x.dim() == 3 else 1
    out = dispatch.empty(*x.shape)
    dispatch.native.rms_norm(x.data_ptr(), x.stride(0), len(x), heads, weight.data_ptr(), x.shape[-1], eps, out.data_ptr())
    return out


def add_rms_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor] | Declined:
    if reason := refuse(x=x, y=y, weight=weight):
        return reason
    x, y, weight = x.contiguous(), y.contiguous(), weight.contiguous()
    rows, width = x.shape
    total, out = dispatch.empty(rows, width), dispatch.empty(rows, width)
    dispatch.native.add_rms_norm(x.data_ptr(), y.data_ptr(), rows, weight.data_ptr(), width, eps, total.data_ptr(), out.data_ptr())
    return total, out


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor | Declined:
    if reason := refuse(x=x, weight=weight, bias=bias):
        return reason
    x, weight, bias = strided(x), weight.contiguous(), bias.contiguous()
    rows, width = x.shape
    out = dispatch.empty(rows, width)
    dispatch.native.layer_norm(x.data_ptr(), x.stride(0), rows, weight.data_ptr(), bias.data_ptr(), width, eps, out.data_ptr())
    return out
