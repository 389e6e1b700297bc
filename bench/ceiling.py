"""What this machine allows, and how near our fp32 linear comes.

First the ceilings: read bandwidth (a sum over memory far larger than any cache) and torch's fp32 GEMM. Then our linear at M = 1 and 512.

Run it on an idle machine: `python bench/ceiling.py [--threads N] [--seconds S]`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from gguf import GGUFReader

from pitstop.config import usable_cores
from pitstop.models.weights.gguf import ModelFile
from pitstop.ops import dispatch
from pitstop.ops.linear import linear, pack

MEMORY = 1 << 29  # bytes read by the bandwidth test: far more than any cache
HEAD = (49152, 576)  # a vocabulary head: 113 MB of fp32, read from memory at every token
FFN = (1536, 576)  # a feed-forward matrix, at a prefill's 512 rows


def best(function: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest of the calls that fit into `seconds`, after one to warm up."""
    function()
    fastest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        function()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def read_bandwidth(seconds: float) -> float:
    """GB/s (10⁹ bytes) that all threads together read from memory. Written first: untouched pages would all be one page of zeros."""
    memory = torch.ones(MEMORY // 4)
    return MEMORY / best(lambda: dispatch.native.read(memory.data_ptr(), memory.numel()), seconds) / 1e9


def weight_bytes(file: ModelFile) -> int:
    """Bytes of weights, as the file stores them, that every decoded token must read: all but an embedding that is not the head."""
    untied = set() if file.config.tied_head else {"token_embd.weight"}
    return sum(int(tensor.n_bytes) for tensor in GGUFReader(file.path).tensors if tensor.name not in untied)


def measure(threads: int, seconds: float) -> dict[str, float | str | int]:
    """All figures: bandwidths in GB/s (10⁹ bytes), arithmetic in GFLOPS."""
    dispatch.use("cpu")
    dispatch.set_threads(threads)
    read = read_bandwidth(seconds)
    x, square = torch.randn(1024, 1024), torch.randn(1024, 1024)
    gemm = 2 * 1024**3 / best(lambda: x @ square, seconds) / 1e9

    token, head = torch.randn(1, HEAD[1]), pack(torch.randn(HEAD))
    one = 4 * HEAD[0] * HEAD[1] / best(lambda: linear(token, head), seconds) / 1e9
    rows, ffn = torch.randn(512, FFN[1]), pack(torch.randn(FFN))
    many = 2 * 512 * FFN[0] * FFN[1] / best(lambda: linear(rows, ffn), seconds) / 1e9
    return {
        "threads": threads,
        "kernels": dispatch.describe(),
        "read_gb_s": read,
        "gemm_gflops": gemm,
        "linear_1_gb_s": one,
        "linear_512_gflops": many,
        "linear_1_ratio": one / read,
        "linear_512_ratio": many / gemm,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    options = parser.parse_args()
    figures = measure(options.threads, options.seconds)
    print(f"{figures['threads']} threads, kernels {figures['kernels']}")
    print(f"ceiling   read {figures['read_gb_s']:.1f} GB/s, fp32 GEMM (torch) {figures['gemm_gflops']:.0f} GFLOPS")
    print(f"linear    M=1 {figures['linear_1_gb_s']:.1f} GB/s ({figures['linear_1_ratio']:.2f} of the ceiling)")
    print(f"          M=512 {figures['linear_512_gflops']:.0f} GFLOPS ({figures['linear_512_ratio']:.2f} of torch)")
    print(json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}))


if __name__ == "__main__":
    main()
