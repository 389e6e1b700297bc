"""Root-mean-square normalisation (Zhang and Sennrich 2019), and layer normalisation (Ba, Kiros and Hinton 2016)."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Op
from pitstop.ops.norm import cpu, ref, triton

_rms_norm = Op("rms_norm", triton=triton.rms_norm, cpu=cpu.rms_norm, ref=ref.rms_norm)
_add_rms_norm = Op("add_rms_norm", triton=triton.add_rms_norm, cpu=cpu.add_rms_norm, ref=ref.add_rms_norm)
_layer_norm = Op("layer_norm", triton=triton.layer_norm, cpu=cpu.layer_norm, ref=ref.layer_norm)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [rows, width] or [rows, heads, width] fp32, weight [width] fp32 → x / sqrt(mean(x²) + eps) · weight, of x's shape, fp32.

    The mean is over `width`: of each head by itself where there are heads.
    """
    if x.dim() not in (2, 3) or weight.shape != x.shape[-1:]:
        shapes = f"{list(x.shape)} and {list(weight.shape)}"
        raise ValueError(f"rms_norm: x must be [rows, width] or [rows, heads, width] and weight [width], got {shapes}")
    return _rms_norm(x, weight, eps)


def add_rms_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x, y [rows, width] fp32 → (x + y, rms_norm(x + y)): a residual and the norm that follows it, in one pass over memory."""
    if x.dim() != 2 or x.shape != y.shape or weight.shape != x.shape[1:]:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (x, y, weight))
        raise ValueError(f"add_rms_norm: x and y must be [rows, width] and weight [width], got {shapes}")
    return _add_rms_norm(x, y, weight, eps)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """x [rows, width], weight and bias [width], all fp32 → (x - mean) / sqrt(variance + eps) · weight + bias, [rows, width] fp32.

    Mean and variance (over `width`, not `width` - 1) are each row's own.
    """
    if x.dim() != 2 or not x.shape[1:] == weight.shape == bias.shape:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (x, weight, bias))
        raise ValueError(f"layer_norm: x must be [rows, width], weight and bias [width], got {shapes}")
    return _layer_norm(x, weight, bias, eps)
