"""What the Triton kernels of products answer: errors in units of their bounds, and bits that differ. test_triton_linear.py judges.

A program for interpreter.py.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from interpreter import main
from kquants import encode
from triton.runtime import interpreter

from pitstop.models.weights.tensor import RawTensor
from pitstop.ops import dispatch, gpu
from pitstop.ops import linear as room
from pitstop.ops.chip import H200
from pitstop.ops.linear import PackedLinear, plan, ref, triton
from pitstop.ops.linear.packing import pack_lines

DEVICE = "cuda" if torch.cuda.is_available() and not gpu.INTERPRETED else "cpu"
KINDS = ("Q4_0", "Q4_1", "Q8_0", "I8", "F16", "BF16")
STEPS = (2, 4) if DEVICE == "cpu" else (2 if torch.cuda.get_device_capability() >= (9, 0) else 4,)


def exact_dot(_self, a, b, c, *_):
    """Sums of 128 products in fp64, rounded once: the interpreter's own takes the bits of bf16 for integers, and its order of summation
    is that of the machine's BLAS, which may change with the number of columns."""
    left, right = (_numbers(operand) for operand in (a, b))
    return interpreter.TensorHandle((left @ right + c.data).astype(np.float32), c.dtype.scalar)


def _numbers(operand) -> np.ndarray:
    if operand.dtype.scalar.is_bf16():
        return (operand.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return operand.data.astype(np.float64)


def nearest(builder, source, kind):
    """fp32 → bf16 as GPUs round; the interpreter's own cuts bits off."""
    if not kind.scalar.is_bf16() or not source.dtype.scalar.is_fp32():
        return builder.cast_impl(source, kind)
    bits = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16().view(torch.int16).numpy()
    return interpreter.TensorHandle(bits.view(np.uint16), kind.scalar)


interpreter.InterpreterBuilder.create_dot = exact_dot
interpreter.InterpreterBuilder.create_fp_trunc = nearest


def poisoned(*launch) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for parts' sums that holds no numbers, lest an earlier launch's are read."""
    sums, arrived = shared_memory(*launch)
    return sums.fill_(torch.nan), arrived


shared_memory = triton.shared_memory
triton.shared_memory = poisoned


def stored(kind: str, weight: torch.Tensor) -> RawTensor:
    if kind == "I8":
        scales = weight.abs().amax(dim=1, keepdim=True) / 127
        data = np.concatenate([scales.numpy().view(np.uint8), (weight / scales).round().to(torch.int8).numpy().view(np.uint8)], axis=1)
    elif kind == "F16":
        data = weight.half().numpy()
    elif kind == "BF16":
        data = weight.bfloat16().view(torch.int16).numpy().view(np.uint8)
    else:
        data = encode(kind, weight.numpy())
    return RawTensor("", kind, tuple(weight.shape), data)


def matrix(kind: str, outs: int, depth: int, step: int = 2, rows: int = 19) -> tuple[torch.Tensor, PackedLinear]:
    """x [rows, depth], which lies in memory that is otherwise no number, and a weight."""
    x, weight = ref.make_inputs(outs + depth, rows, outs, depth)
    around = torch.full((rows + 2, depth + 24), torch.nan)
    around[1:-1, 8:-16] = x
    packed = pack_lines([stored(kind, weight)], torch.device(DEVICE), step)
    assert packed is not None
    return around[1:-1, 8:-16].to(DEVICE), packed


def answer(x: torch.Tensor, weight: PackedLinear, backend: str = "triton") -> torch.Tensor:
    with dispatch.use(backend):
        return room.linear(x, weight).cpu()


def launched(x: torch.Tensor, weight: PackedLinear, outs: int, columns: int, stages: int = 2, splits: int = 1) -> torch.Tensor:
    """The answer of this tile."""
    shape = plan.Shape(len(x), weight.out_features, weight.in_features, weight.form.codes)
    out = torch.full((len(x), weight.out_features), torch.nan, device=DEVICE)
    return triton.run(x, weight, plan.tile(shape, H200, outs, columns, stages, splits, columns > 16), out).cpu()


def errors(x: torch.Tensor, weight: PackedLinear, y: torch.Tensor) -> tuple[float, float]:
    """The largest errors of any output: of summing what the tensor cores are given, and of all; in units of their bounds."""
    codes, values = weight.form.codes, ref.dequantize(weight).cpu()
    near, numbers = triton.rounded(x.cpu(), codes).double(), values.to(triton.TYPES[codes]).double()
    near *= 1 if codes == "bf16" else 16
    if codes == "int8":
        numbers = values.double()
    sums = ref.TOLERANCE * math.sqrt(weight.in_features) * 2**-24 * (near.abs() @ numbers.abs().T)
    wide, full = x.cpu().double(), values.double()
    all_of_it = triton.TOLERANCE[codes] * (wide**2 @ full.T**2).sqrt() + 2**-20 * (full**2).sum(dim=1).sqrt()
    bias = 0 if weight.bias is None else weight.bias.cpu().double()
    y = y.double() - bias
    return float(((y - near @ numbers.T).abs() / sums).max()), float(((y - wide @ full.T).abs() / all_of_it).max())


def _answers(turn: int) -> dict[str, float]:
    """Of every kind, of one step each: 1,344 inputs in two parts, the last block half full; 40 outputs in a tile of 64."""
    found = {}
    for number, kind in enumerate(KINDS):
        step = STEPS[(number + turn) % len(STEPS)]
        x, weight = matrix(kind, 40, 1344, step)
        found[f"{kind}, step {step}, sums"], found[f"{kind}, step {step}"] = errors(x, weight, answer(x, weight))
    return found


def answers() -> dict[str, float]:
    return _answers(0)


def more_answers() -> dict[str, float]:
    return _answers(1)


def edges() -> dict[str, float]:
    """One kind of each width: few inputs, several tiles, other dtypes, a bias, a row alone."""
    found = {}
    for kind in ("Q4_1", "Q8_0", "F16"):
        for outs, depth, rows in ((1, 32, 1), (150, 160, 40), (16, 128, 2)):
            x, weight = matrix(kind, outs, depth, rows=rows)
            found[f"{kind}, {outs} of {depth}, {rows} rows"], _ = errors(x, weight, answer(x, weight))
    x, weight = matrix("Q4_0", 24, 96)
    for dtype in (torch.float16, torch.bfloat16):
        near = x.to(dtype)
        for columns in (16, 32):
            found[f"{dtype}, {columns}"], _ = errors(near.float(), weight, launched(near, weight, 64, columns))
    from dataclasses import replace

    biased = replace(weight, bias=torch.linspace(-3, 3, 24, device=DEVICE))
    found["bias"], _ = errors(x, biased, answer(x, biased))
    return found


def different(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.contiguous().view(torch.int32) != expected.contiguous().view(torch.int32)).sum())


TILES = [(128, 32, 2, 1), (64, 16, 2, 2), (64, 128, 2, 3), (128, 16, 3, 1), (64, 64, 2, 4), (128, 64, 2, 2)]


def _bits(kind: str, step: int, tiles: list[tuple[int, int, int, int]], alone: tuple[int, ...]) -> dict[str, float]:
    """Bits that change with the tile, with who shares it, with the other rows; counters that are left behind. 17½ blocks, 3 parts."""
    x, weight = matrix(kind, 70, 2240, step if step in STEPS else STEPS[0])
    whole = launched(x, weight, 64, 16)
    error, _ = errors(x, weight, whole)
    found = {f"{tile}": different(launched(x, weight, *tile), whole) for tile in tiles}
    found |= {f"row {row} alone": different(launched(x[row : row + 1], weight, 64, 16, 2, 2), whole[row : row + 1]) for row in alone}
    found |= {"planned": different(answer(x, weight), whole), "left in counters": float(triton._arrived(x.device).abs().sum())}
    return {f"{kind}, errors": error} | {f"{kind}, {name}": count for name, count in found.items()}


def bits() -> dict[str, float]:
    return _bits("Q4_1", 2, TILES[:3], (7,))


def more_bits() -> dict[str, float]:
    return _bits("Q4_1", 4, TILES, (0, 18)) | _bits("Q8_0", 4, TILES, (0, 7, 18)) | _bits("BF16", 2, TILES, (0, 7, 18))


def stacks() -> dict[str, float]:
    """Parts of several kinds, one after the other."""
    x, weight = ref.make_inputs(3, 5, 100, 96)
    parts = [stored("Q4_0", weight[:40]), stored("Q4_1", weight[40:60]), stored("Q8_0", weight[60:])]
    both = pack_lines(parts, torch.device(DEVICE), STEPS[0])
    assert [part.form.codes for part in both.parts] == ["4", "8"]
    y = answer(x.to(DEVICE), both)
    pieces = [answer(x.to(DEVICE), pack_lines(some, torch.device(DEVICE), STEPS[0])) for some in (parts[:2], parts[2:])]
    return {"stack": different(y, torch.cat(pieces, dim=1))}


CHECKS = {check.__name__: check for check in (answers, more_answers, edges, bits, more_bits, stacks)}


if __name__ == "__main__":
    main(CHECKS, {"triton_kernels": room})
