"""How near linear comes to what the machine allows, on the default model's shapes, by weight kind and activation precision.

First the ceilings: read bandwidth (a sum over memory far larger than any cache) and torch's fp32 GEMM. Then, for each instruction set,
GB/s of weights at M = 1 and GOPS (a multiply and an add are two) at M = 4 to 512. At M = 1 the calls of a whole model follow each other, so
that every weight comes from memory; the vocabulary head is one of them. Kinds in blocks of 256 have widths of the next multiple.

Run it on an idle machine: `python bench/linear.py [--threads N] [--seconds S] [--isa NAME …]`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json

import torch
from ceiling import best, read_bandwidth

from pitstop.config import usable_cores
from pitstop.ops import dispatch
from pitstop.ops.linear import PackedLinear, linear
from pitstop.ops.linear.packing import QUANTIZED
from pitstop.ops.linear.ref import NESTED

LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD = (49152, 576)
LAYERS = 30
ROWS = (4, 8, 32, 128, 512)


def weights(kind: str, precision: str, layers: int, head: bool) -> list[PackedLinear]:
    """Random weights: their values do not change the time."""
    shapes = [*(LAYER * layers), *([HEAD] if head else [])]
    if kind in NESTED:
        shapes = [(o, -(-i // 256) * 256) for o, i in shapes]
    number = QUANTIZED[kind]
    data = [torch.randint(0, 8, (dispatch.native.packed_bytes(number, i, o),), dtype=torch.uint8) for o, i in shapes]
    return [PackedLinear(kind, o, i, block, precision) for (o, i), block in zip(shapes, data, strict=True)]


def run(matrices: list[PackedLinear], rows: int, seconds: float) -> float:
    """Seconds of one pass of `rows` rows through all of them."""
    inputs = {matrix.in_features: torch.randn(rows, matrix.in_features) for matrix in matrices}
    return best(lambda: [linear(inputs[matrix.in_features], matrix) for matrix in matrices], seconds)


def measure(kind: str, precision: str, read: float, gemm: float, seconds: float) -> dict[str, float | str]:
    model = weights(kind, precision, LAYERS, head=True)
    one = sum(matrix.data.numel() for matrix in model) / run(model, 1, seconds) / 1e9
    result: dict[str, float | str] = {
        "isa": dispatch.native.isa(),
        "kind": kind,
        "activations": precision,
        "gb_s_1": one,
        "ratio_1": one / read,
    }
    for rows in ROWS:
        matrices = model[: len(LAYER) * (LAYERS if rows < 32 else 4)]
        work = 2 * rows * sum(matrix.in_features * matrix.out_features for matrix in matrices)
        result[f"gops_{rows}"] = work / run(matrices, rows, seconds) / 1e9
    result["ratio_512"] = result["gops_512"] / gemm
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement")
    parser.add_argument("--isa", nargs="*", default=dispatch.native.available_isas(), help="instruction sets, all by default")
    options = parser.parse_args()
    dispatch.use("cpu")
    dispatch.set_threads(options.threads)
    square = torch.randn(1024, 1024)
    read = read_bandwidth(options.seconds)
    gemm = 2 * 1024**3 / best(lambda: square @ square, options.seconds) / 1e9
    print(f"{options.threads} threads; ceiling: read {read:.1f} GB/s, fp32 GEMM (torch) {gemm:.0f} GFLOPS")
    results = []
    for isa in options.isa:
        dispatch.native.set_isa(isa)
        for kind in QUANTIZED:
            for precision in ("int16", "int8"):
                result = measure(kind, precision, read, gemm, options.seconds)
                results.append(result)
                rates = ", ".join(f"M={rows} {result[f'gops_{rows}']:.0f}" for rows in ROWS)
                ratios = f"{result['ratio_1']:.2f} of the ceiling; {rates} GOPS, {result['ratio_512']:.2f} of torch's fp32"
                print(f"{isa:10} {kind:4} × {precision:5}  M=1 {result['gb_s_1']:.1f} GB/s, {ratios}", flush=True)
    rounded = [{name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()} for row in results]
    print(json.dumps({"threads": options.threads, "read_gb_s": round(read, 2), "gemm_gflops": round(gemm, 1), "rows": rounded}))


if __name__ == "__main__":
    main()
