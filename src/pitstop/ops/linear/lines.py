"""The layout of weights that the GPU's tensor cores are fed from: codes as stored, in the order in which a warp's threads hold them.

A matrix [out, in] is cut into panels of 16 outputs and blocks of 128 inputs (PANEL, BLOCK), with zeros around it; of each panel one block
lies after the other, all of them whole lines of 128 bytes. Within a block each thread of a warp has 16 bytes of every UNIT, so that a
warp loads 512 bytes side by side, and what it loads is the tensor cores' operand already, but for making numbers of codes: nothing goes
from thread to thread. After the codes the block has its scales, 16 bytes a thread as well.

With the bits of an output's number in its panel called o3 o2 o1 o0 and those of an input's in its block k6 … k0, thread 4 · (o2 o1 o0) + t
has the words (i, o3), i and t being (k3, k2 k1) for step 2, (k1, k3 k2) for step 4. A word of 32 bits has an input's codes and, in its
upper half, those of the next one (k0); within the halves the codes of the inputs 16 on, from the lowest bits up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from pitstop.ops.linear.plan import BLOCK

if TYPE_CHECKING:
    from pitstop.ops.linear.packing import PackedLinear

PANEL, GROUP = 16, 32
"""Outputs of a panel, inputs that share a scale."""

Codes = Literal["4", "8", "int8", "f16", "bf16"]
BITS: dict[Codes, int] = {"4": 4, "8": 8, "int8": 8, "f16": 16, "bf16": 16}
SCALE_WORDS: dict[Codes, int] = {"4": 64, "8": 32, "int8": 0, "f16": 0, "bf16": 0}
"""Of a block."""


@dataclass(frozen=True, slots=True)
class Form:
    """codes: "4" of 4 bits with an fp16 scale and minimum for each 32 inputs, "8" of 8 bits with an fp16 scale for each 32, "int8" with an
    fp32 scale for each output, beside the lines; "f16" and "bf16" are the weights. step: neighbouring inputs in a thread of the tensor
    cores, as Triton has them on sm_80 (4) and on sm_90 (2)."""

    codes: Codes
    step: Literal[2, 4]

    @property
    def bits(self) -> int:
        return BITS[self.codes]

    @property
    def words(self) -> int:
        """32-bit words of a panel's block, scales included."""
        return PANEL * BLOCK * self.bits // 32 + SCALE_WORDS[self.codes]


def blocks(in_features: int) -> int:
    return -(-in_features // BLOCK)


def lay(form: Form, codes: torch.Tensor, scales: torch.Tensor | None = None, minima: torch.Tensor | None = None) -> torch.Tensor:
    """codes [out, in], integers below 2^bits (of 8 bits: plus 128), or 16-bit floats; scales and minima [out, in / 32] fp16 → int32
    [panels, blocks, words]."""
    codes = codes.view(torch.int16) if codes.is_floating_point() else codes
    shape = (2, 4, 2) if form.step == 2 else (4, 2, 2)
    each = 16 // form.bits
    cut = _padded(codes, BLOCK).unflatten(4, (8 // each, each, *shape))  # panel, o3, g, block, unit, j, i and t, h
    i, t = (6, 7) if form.step == 2 else (7, 6)
    cut = cut.permute(0, 3, 4, 2, t, i, 1, 5, 8)  # panel, block, unit, g, t, i, o3 | j, h
    words = torch.zeros(cut.shape[:7], dtype=torch.int32, device=codes.device)
    for j in range(each):
        for h in range(2):
            words |= (cut[..., j, h].int() & (1 << form.bits) - 1) << (form.bits * j + 16 * h)
    words = words.flatten(2)
    if scales is None:
        return words
    numbers = _padded(scales.view(torch.int16), BLOCK // GROUP).unflatten(4, (2, 2))  # panel, o3, g, block, k6, k5
    if form.codes == "4":
        lower, upper = numbers, _padded(minima.view(torch.int16), BLOCK // GROUP).unflatten(4, (2, 2))
        order = (0, 3, 4, 2, 5, 1)  # panel, block, k6, g, k5, o3
    else:
        lower, upper = numbers.unbind(5)
        order = (0, 3, 2, 4, 1)  # panel, block, g, k6, o3
    pairs = (lower.int() & 0xFFFF | upper.int() << 16).permute(order).flatten(2)
    return torch.cat([words, pairs], dim=2)


def _padded(matrix: torch.Tensor, width: int) -> torch.Tensor:
    """[out, n] → [panels, 2, 8, blocks, width], zeros added."""
    rows, columns = -matrix.shape[0] % PANEL, -matrix.shape[1] % width
    return torch.nn.functional.pad(matrix, (0, columns, 0, rows)).unflatten(1, (-1, width)).unflatten(0, (-1, 2, 8))


def rows(weight: PackedLinear, ids: torch.Tensor) -> torch.Tensor:
    """Rows `ids` [n] of the weight → [n, in] fp32: the readable truth about the layout. On a GPU, which we would wait for, ids are not
    checked."""
    form = weight.form
    if not ids.is_cuda and len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < weight.out_features:
        raise IndexError(f"rows: ids reach from {int(ids.min())} to {int(ids.max())} of {weight.out_features}")
    panel, upper, g = ids // PANEL, ids // 8 % 2, ids % 8
    split = PANEL * BLOCK * form.bits // 32
    words = weight.data[:, :, :split].unflatten(2, (-1, 8, 4, 2, 2))[panel, :, :, g, :, :, upper]  # n, block, unit, t, i
    fields = [words >> shift + 16 * h for h in range(2) for shift in range(0, 16, form.bits)]
    codes = torch.stack(fields, dim=-1).unflatten(-1, (2, -1)) & (1 << form.bits) - 1  # …, h, j
    codes = codes.permute(0, 1, 2, 6, 4, 3, 5) if form.step == 2 else codes.permute(0, 1, 2, 6, 3, 4, 5)
    codes = codes.flatten(2)  # n, block, k
    if form.bits == 16:
        values = codes.to(torch.int16).view(torch.float16 if form.codes == "f16" else torch.bfloat16).float()
    elif form.codes == "int8":
        values = (codes - 128) * weight.scales[ids, None, None]
    else:
        scales = weight.data[:, :, split:].unflatten(2, (2, 8, 2, 2) if form.codes == "4" else (8, 2, 2))
        if form.codes == "4":
            pairs = scales[panel, :, :, g, :, upper].flatten(2)  # n, block, group
            scale, minimum = _half(pairs), _half(pairs >> 16)
            values = codes.unflatten(2, (-1, GROUP)) * scale[..., None] + minimum[..., None]
        else:
            pairs = scales[panel, :, g, :, upper]  # n, block, k6
            scale = torch.stack([_half(pairs), _half(pairs >> 16)], dim=-1).flatten(2)
            values = (codes.unflatten(2, (-1, GROUP)) - 128) * scale[..., None]
    return values.reshape(len(ids), -1)[:, : weight.in_features]


def _half(words: torch.Tensor) -> torch.Tensor:
    """The lower halves as fp16 → fp32."""
    return words.to(torch.int16).view(torch.float16).float()


def dequantize(weight: PackedLinear) -> torch.Tensor:
    """The weights, [out, in] fp32."""
    return rows(weight, torch.arange(weight.out_features, device=weight.data.device))
