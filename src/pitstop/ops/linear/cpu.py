"""linear and rows by the native kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pitstop.ops import dispatch
from pitstop.ops.dispatch import Declined
from pitstop.ops.linear.packing import FLOATS, PRECISIONS, QUANTIZED
from pitstop.ops.rows import refuse, strided

if TYPE_CHECKING:
    from pitstop.ops.linear.packing import PackedLinear

_FLOATS = {kind: number for number, kind in enumerate(FLOATS)}


def linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor | Declined:
    if reason := refuse(x=x):
        return reason
    kind, depth, columns, data = weight.kind, weight.in_features, weight.out_features, weight.data.data_ptr()
    x = strided(x)
    rows = len(x)
    out = dispatch.empty(rows, columns)
    if kind in QUANTIZED:
        precision = PRECISIONS[weight.activations]
        dispatch.native.packed_linear(x.data_ptr(), x.stride(0), rows, QUANTIZED[kind], data, depth, columns, precision, out.data_ptr())
    elif kind in _FLOATS:
        dispatch.native.linear(x.data_ptr(), x.stride(0), rows, _FLOATS[kind], data, depth, columns, out.data_ptr())
    else:
        return Declined(f"packed as {kind}")
    if weight.bias is not None:
        dispatch.native.add_bias(out.data_ptr(), rows, columns, weight.bias.data_ptr())
    return out


def rows(weight: PackedLinear, ids: torch.Tensor) -> torch.Tensor | Declined:
    if weight.kind not in QUANTIZED:
        return Declined(f"packed as {weight.kind}")
    ids = ids.contiguous()
    out = dispatch.empty(len(ids), weight.in_features)
    kind, depth, columns = QUANTIZED[weight.kind], weight.in_features, weight.out_features
    dispatch.native.packed_rows(kind, weight.data.data_ptr(), depth, columns, ids.data_ptr(), len(ids), out.data_ptr())
    return out
