"""Packed weights: what they hold, and how stored matrices become them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, Protocol

import numpy as np
import torch

from pitstop.errors import Unsupported
from pitstop.ops import dispatch, gpu, huge_pages
from pitstop.ops.dispatch import native
from pitstop.ops.linear import stored
from pitstop.ops.linear.lines import Form, lay

PANEL = 16
"""Output columns of one panel."""
GROUP = 32
"""Inputs whose products are summed as integers."""
LAYOUT = 1
"""Counts the ways in which the CPU's kinds have been laid out: weights packed in files are those of one of them."""

Kind = Literal["rows", "lines", "stack", "panels", "f16", "bf16", "q4", "q8", "int8", "q5", "q4f", "q4k", "q5k", "q6k"]
Precision = Literal["int16", "int8", "fp32"]

QUANTIZED = {"q4": 0, "q8": 1, "int8": 2, "q5": 3, "q4f": 4, "q4k": 5, "q5k": 6, "q6k": 7}
"""Kinds of integers with scales, by their number in csrc/packed.h."""
FLOATS = {"panels": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
"""Kinds of floating-point panels."""
PRECISIONS: dict[str, int] = {"int16": 0, "int8": 1, "fp32": 2}

_BLOCKS = {
    "Q4_0": (0, "q4"),
    "Q4_1": (1, "q4"),
    "Q8_0": (2, "q8"),
    "Q5_0": (3, "q5"),
    "Q5_1": (4, "q5"),
    "Q4_F": (5, "q4f"),
    "Q4_K": (6, "q4k"),
    "Q5_K": (7, "q5k"),
    "Q6_K": (8, "q6k"),
}
"""From how a matrix is stored to its number in csrc/packed_drivers.h and the kind that it becomes. Q4_F is Q4_1 with fp32 numbers."""
_INT8 = "I8"
"""Rows of an fp32 scale and int8 values."""
_NESTED = ("q4k", "q5k", "q6k")
_NESTED_WIDTH = 256


class Stored(Protocol):
    """A matrix as a model file holds it: `kind` in GGUF's names (or of _BLOCKS), `shape` [out, in], `data` its bytes."""

    kind: str
    shape: tuple[int, ...]
    data: np.ndarray

    def dequantize(self) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight matrix [out_features, in_features] in the layout that its device's kernels read. Make it with `pack` or `pack_stored`.

    kind "panels", "f16", "bf16": data [ceil(out / 16), in, 16] of fp32, fp16 or bf16, output columns padded with zeros, so that 16 outputs
    are reduced side by side, each in the order of `in`. The QUANTIZED kinds: data uint8, the layout of csrc/packed.h, codes of 4 to 8 bits
    with a scale (and for most a minimum) for each 32, of q6k for each 16, of int8 for each output. "stack": `parts` of other kinds, one
    after the other by rows; data is empty. "rows": data fp32 [out, in], as torch has it (CUDA). "lines": data int32 [ceil(out / 16),
    ceil(in / 128), words], the layout of lines.py (CUDA), of `form`; scales: [out] fp32 of codes that have one for each output.
    activations: what a quantised kind is multiplied by: integers of 16 or 8 bits with an fp32 scale for each 32, or fp32 as they are.
    bias: [out] fp32, added to every row of the product, or None.
    """

    kind: Kind
    out_features: int
    in_features: int
    data: torch.Tensor
    activations: Precision = "int16"
    bias: torch.Tensor | None = None
    parts: tuple[PackedLinear, ...] = ()
    form: Form | None = None
    scales: torch.Tensor | None = None

    def __str__(self) -> str:
        kind = f"lines of {self.form.codes}" if self.form else self.kind
        return f"{kind}[{self.out_features}, {self.in_features}] on {self.data.device}"


def pack(weight: torch.Tensor) -> PackedLinear:
    """weight [out, in] fp32, fp16 or bf16 → packed for its device. Raises Unsupported for another dtype or rank."""
    kinds = {dtype: kind for kind, dtype in FLOATS.items()}
    if weight.dtype not in kinds or weight.dim() != 2:
        raise Unsupported(f"pack takes a float32 matrix (or float16, bfloat16), got {weight.dtype} of shape {list(weight.shape)}")
    out_features, in_features = weight.shape
    if weight.is_cuda:
        if weight.dtype is not torch.float32 and (step := _step(weight.device)):
            return _in_lines(weight.shape, stored.Lines(form := Form(_HALVES[weight.dtype], step), lay(form, weight), None))
        return PackedLinear("rows", out_features, in_features, weight.float().contiguous())
    panels = -(-out_features // PANEL)
    data = huge_pages.zeros(panels * in_features * PANEL * weight.itemsize).view(weight.dtype).view(panels, in_features, PANEL)
    whole = out_features // PANEL
    data[:whole] = weight[: whole * PANEL].view(whole, PANEL, in_features).transpose(1, 2)
    if whole < panels:
        data[whole, :, : out_features - whole * PANEL] = weight[whole * PANEL :].T
    return PackedLinear(kinds[weight.dtype], out_features, in_features, data)


def pack_int8(values: torch.Tensor, scales: torch.Tensor, activations: Precision = "int16") -> PackedLinear:
    """values [out, in] int8 and scales [out] fp32, in host memory: weight = value · scale of its output. `in` is a multiple of 32.

    Raises Unsupported for other shapes or dtypes, or without the native kernels.
    """
    if values.dtype is not torch.int8 or scales.dtype is not torch.float32 or scales.shape != values.shape[:1] or values.dim() != 2:
        raise Unsupported(f"pack_int8: int8 [out, in] and float32 [out], got {list(values.shape)} and {list(scales.shape)}")
    out_features, in_features = values.shape
    if native is None or in_features % GROUP:
        raise Unsupported(f"pack_int8: {in_features} inputs are not a multiple of {GROUP}" if native else dispatch.native_missing())
    data = _zeros("int8", out_features, in_features)
    values, scales = values.contiguous(), scales.contiguous()
    native.pack_int8(values.data_ptr(), scales.data_ptr(), out_features, in_features, data.data_ptr())
    return PackedLinear("int8", out_features, in_features, data, activations)


def pack_stored(parts: Sequence[Stored], device: str, activations: Precision = "int16") -> PackedLinear:
    """Matrices [out, in] of one width, stacked by rows → packed for `device`, in their stored precision where kernels for it are active.

    Quantised parts of several kinds become a stack. Floating-point parts of several kinds, mixtures of both, what no layout holds exactly,
    and every kind where the reference runs, become fp32.
    """
    if device.startswith("cuda") and (step := _step(torch.device(device))) and (packed := pack_lines(parts, torch.device(device), step)):
        return packed
    if device == "cpu" and "cpu" in dispatch.active():
        kinds = {part.kind for part in parts}
        if kinds <= {*_BLOCKS, _INT8}:
            if packed := _pack_quantised(parts, activations):
                return packed
        elif len(kinds) == 1 and kinds <= {"F16", "BF16"}:
            return pack(_stack([_half(part) for part in parts]))
    return pack(_stack([torch.from_numpy(np.require(part.dequantize(), requirements="W")) for part in parts]).to(device))


def pack_lines(parts: Sequence[Stored], device: torch.device, step: int) -> PackedLinear | None:
    """Matrices of one width, stacked by rows → lines for the tensor cores' `step` (lines.py), which Triton's kernels read. Neighbours of
    several codes become a stack. None where lines do not hold one of them exactly."""
    packed = []
    for codes, neighbours in groupby(parts, lambda part: stored.CODES.get(part.kind)):
        same = list(neighbours)
        if codes is None or (made := stored.lines(same, device, step)) is None:
            return None
        packed.append(_in_lines((sum(part.shape[0] for part in same), same[0].shape[1]), made))
    return _stacked(packed, "int16")


def _in_lines(shape: Sequence[int], made: stored.Lines) -> PackedLinear:
    return PackedLinear("lines", *shape, made.data, form=made.form, scales=made.scales)


def _step(device: torch.device) -> int:
    """Of lines for a GPU's tensor cores; 0 where Triton's kernels do not run."""
    if "triton" not in dispatch.active() or gpu.missing() or torch.cuda.get_device_capability(device) < (8, 0):
        return 0
    return 2 if gpu.chip(device).arch >= 90 else 4


_HALVES = {torch.float16: "f16", torch.bfloat16: "bf16"}


def _stacked(packed: list[PackedLinear], activations: Precision) -> PackedLinear:
    if len(packed) == 1:
        return packed[0]
    out_features, in_features = sum(part.out_features for part in packed), packed[0].in_features
    data = torch.empty(0, dtype=torch.uint8, device=packed[0].data.device)
    return PackedLinear("stack", out_features, in_features, data, activations, parts=tuple(packed))


def _pack_quantised(parts: Sequence[Stored], activations: Precision) -> PackedLinear | None:
    """Neighbours of one kind together. None where a layout cannot hold one of them exactly."""
    packed = []
    for kind, neighbours in groupby(parts, lambda part: "int8" if part.kind == _INT8 else _BLOCKS[part.kind][1]):
        if (piece := (_pack_rows if kind == "int8" else _pack_blocks)(list(neighbours), activations)) is None:
            return None
        packed.append(piece)
    return _stacked(packed, activations)


def _pack_blocks(parts: Sequence[Stored], activations: Precision) -> PackedLinear | None:
    """Of one packed kind. None for a matrix that the layout cannot hold exactly."""
    kind = _BLOCKS[parts[0].kind][1]
    in_features, out_features = parts[0].shape[1], sum(part.shape[0] for part in parts)
    if in_features % (_NESTED_WIDTH if kind in _NESTED else GROUP):
        return None
    data, first = _zeros(kind, out_features, in_features), 0
    for part in parts:
        stored = np.ascontiguousarray(part.data)
        if not native.pack_blocks(_BLOCKS[part.kind][0], stored.ctypes.data, part.shape[0], in_features, first, data.data_ptr()):
            return None
        first += part.shape[0]
    return PackedLinear(kind, out_features, in_features, data, activations)


def _pack_rows(parts: Sequence[Stored], activations: Precision) -> PackedLinear | None:
    """Of int8 with an fp32 scale before each row. None for a width that the layout does not have."""
    if parts[0].shape[1] % GROUP:
        return None
    data = torch.from_numpy(np.concatenate([part.data for part in parts]))
    return pack_int8(data[:, 4:].view(torch.int8), data[:, :4].contiguous().view(torch.float32).flatten(), activations)


def _zeros(kind: str, out_features: int, in_features: int) -> torch.Tensor:
    """Memory for a QUANTIZED kind. The last panel may have columns too many, which stay zeros."""
    return huge_pages.zeros(native.packed_bytes(QUANTIZED[kind], in_features, out_features))


def _half(part: Stored) -> torch.Tensor:
    """F16 or BF16 as it is."""
    bits = torch.from_numpy(np.require(part.data.view(np.int16), requirements="W")).view(part.shape)
    return bits.view(torch.float16 if part.kind == "F16" else torch.bfloat16)


def _stack(matrices: list[torch.Tensor]) -> torch.Tensor:
    return matrices[0] if len(matrices) == 1 else torch.cat(matrices)
