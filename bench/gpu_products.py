"""Products with packed weights: a section of gpu.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from random_model import BITS, LLAMA3_8B, RandomSource

from pitstop.ops import gpu
from pitstop.ops.linear import PackedLinear, lines, plan, triton
from pitstop.ops.linear.packing import pack_lines
from pitstop.ops.linear.plan import Shape

if TYPE_CHECKING:
    from gpu import Bench


def weight(bench: Bench, kind: str, outs: int, depth: int) -> PackedLinear:
    """Random weights in lines, as a file that stores them as `kind` would give them."""
    source = RandomSource(LLAMA3_8B, kind, seed=outs)
    packed = pack_lines([source.tensor("", (outs, depth))], bench.device, 2 if gpu.chip(bench.device).arch >= 90 else 4)
    if packed is None:
        raise ValueError(f"no lines for {kind}")
    return packed


def products(bench: Bench) -> None:
    """Right first; then an 8B shape's products at a few rows: bytes of weights a second beside the copy, and torch's in bf16; the planner
    beside the fixed tile."""
    cuda = bench.device.type == "cuda"
    sizes = {"qkv": (6144, 4096), "output": (4096, 4096), "gate·up": (28672, 4096), "down": (4096, 14336)} if cuda else {"tiny": (96, 160)}
    for kind in BITS:
        for name, (outs, depth) in sizes.items():
            matrix = weight(bench, kind, outs, depth)
            dense = lines.dequantize(matrix)
            for rows in (1, 8, 64) if cuda else (1, 3):
                x = torch.randn(rows, depth, device=bench.device)
                shape = Shape(rows, outs, depth, matrix.form.codes)
                out = torch.full((rows, outs), torch.nan, device=bench.device)
                chosen = plan.plan(shape, gpu.chip(bench.device))
                triton.run(x, matrix, chosen, out)
                exact = x.double() @ dense.double().T
                bound = triton.TOLERANCE[matrix.form.codes] * (x.double() ** 2 @ dense.double().T ** 2).sqrt()
                what = f"{name} {outs} of {depth}, {kind}, {rows} rows"
                error = float(((out - exact).abs() / (bound + 1e-6)).max())
                bench.add(f"{what}: error, of its bound", error, "")
                if not error <= 1:
                    raise ValueError(f"{what}: beyond its bound")
                taken = bench.seconds(lambda x=x, out=out, chosen=chosen, matrix=matrix: triton.run(x, matrix, chosen, out))
                bench.add(what, taken * 1e6, "us", matrix.data.nbytes / taken / bench.ceilings["copy"])
                tile = plan.fixed(shape, gpu.chip(bench.device))
                theirs = bench.seconds(lambda x=x, out=out, tile=tile, matrix=matrix: triton.run(x, matrix, tile, out))
                bench.add("   the fixed tile takes, of the planned one", theirs / taken, "times")
                near, half = x.bfloat16(), dense.bfloat16()
                theirs = bench.seconds(lambda near=near, half=half: near @ half.T)
                bench.add("   torch in bf16 takes, of ours", theirs / taken, "times")
