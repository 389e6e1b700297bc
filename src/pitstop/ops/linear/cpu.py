"""linear and rows by the native kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pitstop.ops import dispatch
from pitstop.ops.dispatch import Declined
from pitstop.ops.linear import ref
from pitstop.ops.linear.packing import FLOATS, PRECISIONS, QUANTIZED
from pitstop.ops.rows import refuse, strided

if TYPE_CHECKING:
    from pitstop.ops.linear.packing import PackedLinear

_FLOATS = {kind: number for number, kind in enumerate(FLOATS)}


def linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor | Declined:
    if reason := refuse(x=x):
        return reason
    x = strided(x)
    rows, columns = len(x), weight.out_features
    out = dispatch.empty(rows, columns)
    if weight.kind in _FLOATS:
        kind, data, depth = _FLOATS[weight.kind], weight.data.data_ptr(), weight.in_features
        dispatch.native.linear(x.data_ptr(), x.stride(0), rows, kind, data, depth, columns, out.data_ptr())
    elif weight.kind in QUANTIZED:
        _quantised(x, weight, out, 0)
    elif weight.kind == "stack":
        first = 0
        for part in weight.parts:
            _quantised(x, part, out, first)
            first += part.out_features
    else:
        return Declined(f"packed as {weight.kind}")
    if weight.bias is not None:
        dispatch.native.add_bias(out.data_ptr(), rows, columns, weight.bias.data_ptr())
    return out


def _quantised(x: torch.Tensor, weight: PackedLinear, out: torch.Tensor, first: int) -> None:
    """Into the columns of `out` from `first` on."""
    kind, precision, address = QUANTIZED[weight.kind], PRECISIONS[weight.activations], out.data_ptr() + 4 * first
    size = weight.data.data_ptr(), weight.in_features, weight.out_features
    dispatch.native.packed_linear(x.data_ptr(), x.stride(0), len(x), kind, *size, precision, address, out.shape[1])


def rows(weight: PackedLinear, ids: torch.Tensor, scale: float) -> torch.Tensor | Declined:
    if weight.kind in _FLOATS:
        kind, gather = _FLOATS[weight.kind], dispatch.native.linear_rows
    elif weight.kind in QUANTIZED:
        kind, gather = QUANTIZED[weight.kind], dispatch.native.packed_rows
    else:
        return Declined(f"packed as {weight.kind}")
    ids = ids.contiguous()
    out = dispatch.empty(len(ids), weight.in_features)
    size = weight.data.data_ptr(), weight.in_features, weight.out_features
    gather(kind, *size, ids.data_ptr(), len(ids), scale, out.data_ptr())
    return out


def accumulate(y: torch.Tensor, part: torch.Tensor, row: int, column: int) -> torch.Tensor | Declined:
    if reason := refuse(y=y, part=part):
        return reason
    if not dispatch.recording():  # one call of torch's for all rows
        return ref.accumulate(y, part, row, column)
    width, address = y.stride(0), y.data_ptr() + 4 * (row * y.stride(0) + column)
    for index in range(len(part)):
        dispatch.native.add_bias(address + 4 * index * width, 1, part.shape[1], part.data_ptr() + 4 * index * part.stride(0))
    return y
