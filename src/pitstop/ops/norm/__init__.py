"""Root-mean-square normalisation (Zhang and Sennrich 2019)."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Op
from pitstop.ops.norm import cpu, ref

_rms_norm = Op("rms_norm", cpu=cpu.rms_norm, ref=ref.rms_norm)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [rows, width] fp32, weight [width] fp32 → x / sqrt(mean(x²) + eps) · weight, [rows, width] fp32."""
    if x.dim() != 2 or weight.shape != x.shape[1:]:
        raise ValueError(f"rms_norm: x must be [rows, width] and weight [width], got {list(x.shape)} and {list(weight.shape)}")
    return _rms_norm(x, weight, eps)
