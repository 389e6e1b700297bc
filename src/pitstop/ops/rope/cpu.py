"""The rotations by the native kernels."""

from __future__ import annotations

import torch

from pitstop.ops import dispatch
from pitstop.ops.dispatch import Declined
from pitstop.ops.rows import refuse, strided


def rotate(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor | Declined:
    if reason := refuse(x=x, cos=cos, sin=sin):
        return reason
    if positions.dtype is not torch.int32:
        return Declined("positions must be int32")
    x, positions, cos, sin = strided(x), positions.contiguous(), cos.contiguous(), sin.contiguous()
    rows, heads, dim = x.shape
    out = dispatch.empty(rows, heads, dim)
    dispatch.native.rotate(
        x.data_ptr(),
        x.stride(0),
        rows,
        positions.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        len(cos),
        heads,
        dim,
        interleaved,
        out.data_ptr(),
    )
    return out


def hadamard(x: torch.Tensor) -> torch.Tensor | Declined:
    if reason := refuse(x=x):
        return reason
    x = strided(x)
    rows, heads, dim = x.shape
    out = dispatch.empty(rows, heads, dim)
    dispatch.native.hadamard(x.data_ptr(), x.stride(0), rows, heads, dim, out.data_ptr())
    return out
