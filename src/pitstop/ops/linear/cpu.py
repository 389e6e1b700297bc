"""linear by the native kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pitstop.ops import dispatch
from pitstop.ops.dispatch import Declined
from pitstop.ops.rows import refuse, strided

if TYPE_CHECKING:
    from pitstop.ops.linear import PackedLinear


def linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor | Declined:
    if weight.kind != "panels":
        return Declined(f"packed as {weight.kind}")
    if reason := refuse(x=x, weight=weight.data):
        return reason
    x = strided(x)
    rows, out_features = len(x), weight.out_features
    out = dispatch.empty(rows, out_features)
    dispatch.native.linear(x.data_ptr(), x.stride(0), rows, weight.data.data_ptr(), weight.in_features, out_features, out.data_ptr())
    return out
