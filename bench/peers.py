"""Pitstop beside llama.cpp and OpenVINO GenAI: the same GGUF, prompts and token counts, in alternating turns. `make bench-peers`.

    python bench/peers.py [--model NAME_OR_PATH] [--turns 3] [--only decode_1,prefill_512] [--peers llama_cpp] [--quick] [--text FILE]

Run it on an idle machine. The ceiling comes first: an aim above it is void. A figure is the median of its turns, in tokens a second. Each
peer runs in every variant (weights, flash attention, precisions) in the first turn, and those within 15 % of its best in the others; its
figure is its best variant's. OpenVINO in fp32 throughout always runs: it alone computes what Pitstop does with exact activations. A KV
cache of fewer than 16 bits counts where the case is not about the cache. llama.cpp's tools make random tokens; everyone else gets the
Python language reference. The last line is JSON; "others" in it is the share of the cores that other processes had.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import peers_install
import texts
import torch
from ceiling import best, read_bandwidth, weight_bytes
from engines import OPENVINO_EXACT, PEERS, Job, LlamaCpp, OpenVino, Pitstop, activations_known
from measure import CASES
from others import Others
from tqdm import tqdm

from pitstop.config import usable_cores
from pitstop.models.weights.fetch import pull
from pitstop.models.weights.gguf import ModelFile, open_gguf
from pitstop.ops import dispatch
from pitstop.text.tokenizer import Tokenizer

INT8 = "_int8act"
WITH_INT8 = ("decode_32", "prefill_512", "prefill_2048")
AGAINST_LLAMA_CPP = ("decode_1", "decode_32")
"""Cases whose bar is against llama.cpp's best; the others' is against the best peer."""
SAME_CACHE = ("decode_1_7k",)
"""Cases that the KV cache decides: only peers with 16 bits count."""
NEAR = 0.85

Variant = Pitstop | LlamaCpp | OpenVino


@dataclass(frozen=True)
class Ceiling:
    """read: GB/s (10⁹ bytes); gemm: GFLOPS of torch's fp32 product; weights and kv: bytes read a token and a token of context."""

    read: float
    gemm: float
    weights: int
    kv: int

    def decode(self, context: int) -> float:
        """Tokens/s at which one stream reads its weights and its context as fast as memory gives them."""
        return self.read * 1e9 / (self.weights + self.kv * context)


def ceiling(file: ModelFile, threads: int) -> Ceiling:
    dispatch.use("auto")
    dispatch.set_threads(threads)
    c, square = file.config, torch.randn(1024, 1024)
    gemm = 2 * 1024**3 / best(lambda: square @ square, 1.0) / 1e9
    return Ceiling(read_bandwidth(1.0), gemm, weight_bytes(file), 2 * 2 * c.layers * c.kv_heads * c.head_dim)


def run_case(job: Job, ours: list[Pitstop], peers: list[str], turns: int) -> dict[Variant, list[float]]:
    """Each variant's figures by turn; those far behind their engine's best have one only."""
    figures: dict[Variant, list[float]] = {variant: [] for variant in (*ours, *(peer for peer in PEERS if peer.engine in peers))}
    running, always = list(figures), (*ours, OPENVINO_EXACT)
    for turn in range(turns):
        for variant in tqdm(running, desc=job.case, leave=False):
            figures[variant].append(variant.speed(job))
        if turn == 0:
            leaders = {engine: _best(figures, engine)[1] for engine in peers}
            running = [variant for variant in running if variant in always or figures[variant][0] >= NEAR * leaders[variant.engine]]
    return figures


def _best(figures: dict[Variant, list[float]], engine: str, case: str = "") -> tuple[Variant, float]:
    """The fastest of an engine's variants that ran in all turns and count for the case, and its median."""
    turns = max(map(len, figures.values()))
    whole = {variant: values for variant, values in figures.items() if variant.engine == engine and len(values) == turns}
    medians = {variant: statistics.median(values) for variant, values in whole.items()}
    if case in SAME_CACHE:
        medians = {variant: median for variant, median in medians.items() if not (isinstance(variant, OpenVino) and variant.kv == "u8")}
    return max(medians.items(), key=lambda item: item[1])


def row(what: str, case: str, ours: Pitstop, peers: list[str], figures: dict[Variant, list[float]]) -> dict:
    pitstop = statistics.median(figures[ours])
    best = {engine: _best(figures, engine, case) for engine in peers}
    bar = best["llama_cpp"][1] if case in AGAINST_LLAMA_CPP else max(speed for _, speed in best.values())
    speeds = {"pitstop": pitstop, **{engine: speed for engine, (_, speed) in best.items()}}
    if OPENVINO_EXACT in figures:
        speeds["openvino_fp32"] = statistics.median(figures[OPENVINO_EXACT])
    variants = {f"{engine}_variant": str(variant) for engine, (variant, _) in best.items()}
    return {"what": what, **{name: round(value, 1) for name, value in speeds.items()}, "ratio": round(pitstop / bar, 3), **variants}


def report(case: str, limits: Ceiling, figures: dict[Variant, list[float]], rows: list[dict]) -> None:
    shape = CASES[case]
    if shape.streams == 1 and shape.tokens > 1:
        limit = limits.decode(shape.prompt + shape.tokens // 2)
        print(f"\n{case}: {limit:.0f} tokens/s if memory were all")
    else:
        print(f"\n{case}")
    for variant, values in figures.items():
        turns = " ".join(f"{value:.1f}" for value in values)
        print(f"  {variant.engine:10} {variant!s:18} {statistics.median(values):8.1f}   turns {turns}")
    for line in rows:
        print(f"  {line['what']}: {line['ratio']:.2f} × {'llama.cpp' if case in AGAINST_LLAMA_CPP else 'the best peer'}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default=",".join(CASES), help="cases, separated by commas")
    parser.add_argument("--peers", default="llama_cpp,openvino", help="engines to compare with, separated by commas")
    parser.add_argument("--quick", action="store_true", help="one turn, without the context of 7,000 tokens")
    parser.add_argument("--text", help="a file of real text for the prompts")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="for every engine")
    options = parser.parse_args()
    options.cases = options.only.split(",")
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"--only: {', '.join(unknown)}; choose among {', '.join(CASES)}")
    options.peers = options.peers.split(",")
    if unknown := set(options.peers) - {peer.engine for peer in PEERS}:
        parser.error(f"--peers: {', '.join(unknown)}; choose among llama_cpp, openvino")
    if "llama_cpp" not in options.peers and set(options.cases) & set(AGAINST_LLAMA_CPP):
        parser.error(f"--peers: the bar of {' and '.join(AGAINST_LLAMA_CPP)} is llama_cpp's")
    if options.quick:
        options.turns = 1
        options.cases = [case for case in options.cases if case != "decode_1_7k"]
    return options


def main() -> None:
    options = arguments()
    peers_install.install(options.threads)
    file = open_gguf(pull(options.model))
    tokenizer = Tokenizer(file.vocabulary())
    limits = ceiling(file, options.threads)
    print(
        f"ceiling: {limits.read:.1f} GB/s read, {limits.weights / 1e6:.0f} MB of weights a token: {limits.decode(0):.0f} tokens/s for one "
        f"stream; fp32 GEMM (torch) {limits.gemm:.0f} GFLOPS; {options.threads} threads",
        flush=True,
    )
    if not activations_known():
        print(f"Pitstop here has no option `activations`: no rows …{INT8}")
    exact, int8 = Pitstop(), Pitstop((("activations", "int8"),))
    rows = []
    for case in options.cases:
        job = Job(case, texts.prompts(tokenizer, texts.read(options.text), CASES[case]), Path(file.path), options.threads)
        whats = {case: exact, **({case + INT8: int8} if case in WITH_INT8 and activations_known() else {})}
        with Others() as others:
            figures = run_case(job, list(whats.values()), options.peers, options.turns)
        new = [row(what, case, ours, options.peers, figures) | {"others": round(others.share, 3)} for what, ours in whats.items()]
        report(case, limits, figures, new)
        print(f"  {others}", flush=True)
        rows += new
    rows.sort(key=lambda line: line["what"].endswith(INT8))
    print(json.dumps({"stream_gbs": round(limits.read, 1), "rows": rows}))


if __name__ == "__main__":
    main()
