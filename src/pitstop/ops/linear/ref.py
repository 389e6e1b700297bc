"""linear and rows in plain torch, their inputs and tolerances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pitstop.ops.linear import lines
from pitstop.ops.linear.packing import FLOATS, GROUP, PANEL, QUANTIZED
from pitstop.ops.rowwise import rowwise

if TYPE_CHECKING:
    from pitstop.ops.linear.packing import PackedLinear

TOLERANCE = 2.0
"""|y - exact| ≤ TOLERANCE · √in · 2⁻²⁴ · Σ|x||w|: rounding errors of a chain add up like a random walk (Higham and Mary 2019)."""

LEVELS = {"int16": 32767, "int8": 127}
"""Largest integer that activations are rounded to."""

SMALLEST = 2.0**-100
"""Groups of activations whose largest magnitude is below count as zeros."""


def linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    product = _product(x, weight)
    return product if weight.bias is None else product + weight.bias


def _product(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    if weight.kind == "stack":
        return torch.cat([_product(x, part) for part in weight.parts], dim=1)
    if weight.kind in FLOATS:
        panels = weight.data.float()
        return rowwise(lambda row: torch.matmul(row, panels).transpose(0, 1).flatten(1)[:, : weight.out_features], x)
    matrix = dequantize(weight)
    if weight.kind in QUANTIZED and weight.activations in LEVELS:
        x = rounded(x, LEVELS[weight.activations])
    return rowwise(lambda row: row @ matrix.T, x)


def rounded(x: torch.Tensor, levels: int) -> torch.Tensor:
    """x [rows, in] with each group of 32 rounded to multiples of its largest magnitude / levels; NaN where it holds an infinity or NaN.

    Each value moves by half such a multiple at most.
    """
    groups = x.unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(dim=2, keepdim=True)
    largest = largest.where(largest.isfinite(), torch.nan)
    small = largest < SMALLEST
    inverse = torch.full_like(largest, levels) / largest.where(~small, 1)  # one rounding, as natively; levels / tensor has two
    values = (groups * inverse).round().where(~small, 0)
    return (values * (largest.where(~small, 0) / levels)).flatten(1)


def rows(weight: PackedLinear, ids: torch.Tensor, scale: float) -> torch.Tensor:
    found = _rows(weight, ids)
    return found if scale == 1 else found * scale


def _rows(weight: PackedLinear, ids: torch.Tensor) -> torch.Tensor:
    if weight.kind == "rows":
        return weight.data[ids]
    if weight.kind in FLOATS:
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < weight.out_features:
            raise IndexError(f"rows: ids reach from {int(ids.min())} to {int(ids.max())} of {weight.out_features}")
        return weight.data[ids // PANEL, :, ids % PANEL].float()
    if weight.kind == "lines":
        return lines.rows(weight, ids)
    return dequantize(weight)[ids]


def accumulate(y: torch.Tensor, part: torch.Tensor, row: int, column: int) -> torch.Tensor:
    y.narrow(0, row, len(part)).narrow(1, column, part.shape[1]).add_(part)
    return y


def dequantize(weight: PackedLinear) -> torch.Tensor:
    """The weights, [out, in] fp32: the readable truth about every layout."""
    if weight.kind == "rows":
        return weight.data
    if weight.kind == "lines":
        return lines.dequantize(weight)
    if weight.kind in FLOATS:
        return weight.data.float().transpose(1, 2).flatten(0, 1)[: weight.out_features]
    if weight.kind == "stack":
        return torch.cat([dequantize(part) for part in weight.parts])
    panels, groups = -(-weight.out_features // PANEL), weight.in_features // GROUP
    data = weight.data.view(panels, -1)
    if weight.kind == "int8":
        scales, data = data[:, : 4 * PANEL].contiguous().view(torch.float32)[:, None, :, None], data[:, 4 * PANEL :]
        values = _bytes(data.view(panels, groups, -1)) * scales
    elif weight.kind in NESTED:
        values = _nested(weight.kind, data.view(panels, groups // 8, -1))
    else:
        values = _plain(weight.kind, data.view(panels, groups, -1))
    return values.transpose(1, 2).reshape(panels * PANEL, -1)[: weight.out_features]


NESTED = {"q4k": 4, "q5k": 5, "q6k": 6}
"""Bits of their codes."""
_PLAIN = {"q4": (4, torch.float16), "q5": (5, torch.float16), "q4f": (4, torch.float32)}


def _plain(kind: str, data: torch.Tensor) -> torch.Tensor:
    """[panels, groups, bytes of a group] → [panels, groups, 16, 32]."""
    if kind == "q8":
        return _bytes(data[..., 2 * PANEL :]) * data[..., : 2 * PANEL].contiguous().view(torch.float16).float()[..., None]
    bits, dtype = _PLAIN[kind]
    size = 2 * PANEL * dtype.itemsize
    scales, minima = data[..., :size].contiguous().view(dtype).float().unflatten(2, (2, PANEL, 1)).unbind(2)
    return _codes(data[..., size:], bits) * scales + minima


def _nested(kind: str, data: torch.Tensor) -> torch.Tensor:
    """[panels, groups / 8, bytes of eight groups] → [panels, groups, 16, 32]."""
    factors = data[..., : 4 * PANEL].contiguous().view(torch.float16).float().unflatten(2, (2, 1, PANEL, 1))
    numbers = data[..., 4 * PANEL : 20 * PANEL].float().unflatten(2, (8, 2, PANEL, 1))
    codes = _codes(data[..., 20 * PANEL :].unflatten(2, (8, -1)).flatten(1, 2), NESTED[kind]).unflatten(1, (-1, 8))
    if kind == "q6k":
        scales = (numbers - 128).movedim(3, 4) * factors[:, :, 0, :, :, None]  # group, column, half
        values = ((codes - 32).unflatten(4, (2, -1)) * scales).flatten(4)
    else:
        values = codes * (numbers[:, :, :, 0] * factors[:, :, 0]) + numbers[:, :, :, 1] * factors[:, :, 1]
    return values.flatten(1, 2)


def _codes(data: torch.Tensor, bits: int) -> torch.Tensor:
    """Of 4, 5 or 6 bits, [panels, groups, bytes] → [panels, groups, 16, 32].

    Nibble j of a lane's low 16 bits is input 2j, of its high 16 bits 2j + 1.
    """
    lanes = data[..., :256].unflatten(2, (4, PANEL, 2, 2)).int()  # part, column, low or high half, byte
    nibbles = torch.stack([lanes & 15, lanes >> 4], dim=-1)
    if more := bits - 4:
        lanes = data[..., 256:].unflatten(2, (more, PANEL, 2, 2)).int()
        fields = torch.stack([lanes >> shift & (1 << more) - 1 for shift in range(0, 8, more)], dim=-1)  # part of the vector and nibble
        further = fields.unflatten(-1, (-1, 2)).movedim(-2, 3).flatten(2, 3)
        nibbles = nibbles + (further << 4)
    return nibbles.flatten(-2).permute(0, 1, 3, 2, 5, 4).flatten(3).float()


def _bytes(data: torch.Tensor) -> torch.Tensor:
    """[panels, groups, 512] → [panels, groups, 16, 32]: parts 2i and 2i + 1 hold inputs 8i + 0 4 1 5 and 2 6 3 7."""
    values = data.view(torch.int8).unflatten(2, (4, 2, PANEL, 2, 2))  # i, second part, column, + 1, + 4
    return values.permute(0, 1, 4, 2, 6, 3, 5).flatten(3).float()  # column, i, + 4, + 2, + 1


def make_inputs(seed: int, rows: int, out_features: int, in_features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, in] and weight [out, in], fp32, with a few large activations as real models have them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, in_features, generator=generator)
    x[:, :: max(1, in_features // 3)] *= 100
    return x, torch.randn(out_features, in_features, generator=generator) / in_features**0.5
