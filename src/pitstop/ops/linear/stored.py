"""Matrices as model files hold them → lines (lines.py), exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from pitstop.ops.linear.lines import GROUP, Codes, Form, lay

if TYPE_CHECKING:
    from pitstop.ops.linear.packing import Stored

CODES: dict[str, Codes] = {"Q4_0": "4", "Q4_1": "4", "Q8_0": "8", "I8": "int8", "F16": "f16", "BF16": "bf16"}
"""What each way of storing becomes; others have no lines."""

LARGEST = 65504.0
"""Of fp16, which products are made of."""


class Lines(NamedTuple):
    """See PackedLinear's fields of these names."""

    form: Form
    data: torch.Tensor
    scales: torch.Tensor | None


def lines(parts: Sequence[Stored], device: torch.device, step: int) -> Lines | None:
    """Parts of the same codes, stacked by rows. None for what the layout does not hold exactly, or products of fp16 do not reach."""
    form = Form(CODES[parts[0].kind], step)
    read = {"4": _nibbles, "8": _bytes, "int8": _channels, "f16": _floats, "bf16": _floats}[form.codes]
    columns = list(zip(*(read(part, device) for part in parts), strict=True))
    codes, scales, minima = (None if column[0] is None else torch.cat(column) for column in columns)
    if scales is not None and not (scales.abs() * _MOST[form.codes] + (0 if minima is None else minima.abs()) <= LARGEST).all():
        return None
    if form.codes == "int8":
        return Lines(form, lay(form, codes), scales)
    halves = [None if numbers is None else numbers.half() for numbers in (scales, minima)]
    if minima is not None and not torch.equal(halves[1].float(), minima):
        return None
    return Lines(form, lay(form, codes, *halves), None)


_MOST = {"4": 15, "8": 128, "int8": 0}
"""Largest magnitude of a code; int8's scales are fp32 until the end."""

Read = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""Codes [out, in], scales and minima fp32 [out, in / 32]."""


def _blocks(part: Stored, size: int, device: torch.device) -> torch.Tensor:
    """[out, in / 32, size] uint8."""
    return torch.from_numpy(np.require(part.data, requirements="W")).to(device).view(part.shape[0], part.shape[1] // GROUP, size)


def _number(blocks: torch.Tensor, at: int) -> torch.Tensor:
    return blocks[..., at : at + 2].contiguous().view(torch.float16).squeeze(2).float()


def _nibbles(part: Stored, device: torch.device) -> Read:
    size = {"Q4_0": 18, "Q4_1": 20}[part.kind]
    blocks = _blocks(part, size, device)
    codes = torch.cat([blocks[..., size - 16 :] & 15, blocks[..., size - 16 :] >> 4], dim=2).flatten(1)
    scales = _number(blocks, 0)
    return codes, scales, -8 * scales if part.kind == "Q4_0" else _number(blocks, 2)


def _bytes(part: Stored, device: torch.device) -> Read:
    blocks = _blocks(part, 34, device)
    return (blocks[..., 2:] ^ 128).flatten(1), _number(blocks, 0), None


def _channels(part: Stored, device: torch.device) -> Read:
    rows = torch.from_numpy(np.require(part.data, requirements="W")).to(device).view(part.shape[0], part.shape[1] + 4)
    return rows[:, 4:] ^ 128, rows[:, :4].contiguous().view(torch.float32).flatten(), None


def _floats(part: Stored, device: torch.device) -> Read:
    bits = torch.from_numpy(np.require(part.data, requirements="W").view(np.int16)).to(device).view(part.shape)
    return bits, None, None
