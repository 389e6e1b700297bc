"""silu_mul by the native kernels."""

from __future__ import annotations

import torch

from pitstop.ops import dispatch
from pitstop.ops.dispatch import Declined
from pitstop.ops.rows import refuse, strided


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor | Declined:
    if reason := refuse(gate_up=gate_up):
        return reason
    gate_up = strided(gate_up)
    rows, features = len(gate_up), gate_up.shape[1] // 2
    out = dispatch.empty(rows, features)
    dispatch.native.silu_mul(gate_up.data_ptr(), gate_up.stride(0), rows, features, out.data_ptr())
    return out
