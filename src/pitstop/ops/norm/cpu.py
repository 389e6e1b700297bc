"""rms_norm by the native kernels."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Declined, native
from pitstop.ops.rows import refuse, strided


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor | Declined:
    if reason := refuse(x=x, weight=weight):
        return reason
    x, weight = strided(x), weight.contiguous()
    rows, width = x.shape
    out = torch.empty(rows, width)
    native.rms_norm(x.data_ptr(), x.stride(0), rows, weight.data_ptr(), width, eps, out.data_ptr())
    return out
