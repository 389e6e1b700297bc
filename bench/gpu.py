"""Attention, products, what is done row by row and whole models on a GPU: right first, then how near to the ceiling. At most eight
minutes on a bare machine with torch and Triton.

    python bench/gpu.py [--out FOLDER] [--minutes 8]
    python bench/gpu.py --dry-run            the same way through tiny shapes, in Triton's interpreter; its times mean nothing

Prints ceilings, measurements and ratios, a table last, then one JSON line, which is in FOLDER/gpu.json too, after every section.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from gpu_products import products
from gpu_rows import by_row
from random_model import BITS, LLAMA3_8B, SMOLLM2_135M, RandomSource
from random_model import TINY as TINY_MODEL

from pitstop import codecs
from pitstop.config import EngineConfig, KVConfig
from pitstop.engine.core import Engine
from pitstop.kv.capacity import page_bytes
from pitstop.ops import dispatch, gpu
from pitstop.ops.attention import triton
from pitstop.ops.attention.layout import Layout
from pitstop.ops.attention.plan import Heads, Plan, Span, fixed, plan, schedule
from pitstop.types import SEGMENT, Request, SamplingParams

CODECS = ("raw16", "int8", "int4")


class Size(NamedTuple):
    """streams of `length` tokens each, decoded; prefill of `chunk` tokens; what is copied and multiplied for the ceilings."""

    heads: Heads
    streams: int
    length: int
    chunk: int
    copied: int
    square: int
    turns: int


REAL = Size(Heads(32, 8, 128), 32, 16384, 8192, 4 << 30, 8192, 20)
TINY = Size(Heads(4, 2, 64), 2, 260, 130, 1 << 20, 64, 1)


class Bench:
    """Sections that each add rows (name, figure, unit, share of its ceiling) until the time is over."""

    def __init__(self, size: Size, device: str, out: Path, seconds: float) -> None:
        self.size = size
        self.device = torch.device(device)
        self.out = out
        self.end = time.monotonic() + seconds
        self.rows: list[tuple[str, float, str, float | None]] = []
        self.skipped: list[str] = []
        self.ceilings: dict[str, float] = {}

    def add(self, name: str, figure: float, unit: str, share: float | None = None) -> None:
        self.rows.append((name, figure, unit, share))
        print(f"{name:58} {figure:12.4g} {unit:8} {'' if share is None else f'{share:.1%} of the ceiling'}", flush=True)

    def seconds(self, function: Callable[[], object]) -> float:
        """The median of the turns, by the GPU's own clock where there is one; a cache of 256 MB is flushed before each."""
        function()
        if self.device.type == "cpu":
            start = time.perf_counter()
            function()
            return time.perf_counter() - start
        flush = torch.empty(256 << 20, dtype=torch.uint8, device=self.device)
        taken = []
        for _ in range(self.size.turns):
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            end.record()
            torch.cuda.synchronize()
            taken.append(start.elapsed_time(end) / 1e3)
        return sorted(taken)[len(taken) // 2]

    def run(self, sections: dict[str, Callable[[Bench], None]]) -> None:
        for name, section in sections.items():
            if time.monotonic() > self.end:
                self.skipped.append(f"{name}: no time left")
                continue
            print(f"-- {name}", flush=True)
            try:
                section(self)
            except Exception as error:  # what fails is a result, and the next section still has its turn
                self.skipped.append(f"{name}: {type(error).__name__}: {error}")
                print(f"   {self.skipped[-1]}", flush=True)
            self.write()

    def write(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "gpu.json").write_text(json.dumps(self.report()))

    def report(self) -> dict[str, object]:
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else "interpreter (no figure here is a time)"
        return {"device": name, "torch": torch.__version__, "rows": self.rows, "ceilings": self.ceilings, "skipped": self.skipped}


class Memory(NamedTuple):
    """A cache of streams: what attention reads. Pages of random codes with ranges near those of normal values; dense: as SDPA takes it."""

    q: torch.Tensor
    tails: torch.Tensor
    pages: torch.Tensor
    table: torch.Tensor
    items: list[tuple[int, int, int, int, int, int]]


def memory(bench: Bench, layout: Layout, streams: int, length: int, rows: int) -> Memory:
    """Of `streams` streams the last `rows` rows of `length` tokens. Every range is (1/100, -1), every 16-bit value small."""
    heads, device = bench.size.heads, bench.device
    items, table = [], []
    segments, leads = (length - 1) // 128, layout.lead_pages
    for stream in range(streams):
        first = len(table)
        table += range(stream * (segments + leads), (stream + 1) * (segments + leads))
        for segment in range((length - rows) // 128, (length - 1) // 128 + 1):
            at = max(length - rows, segment * 128)
            count = min(length, segment * 128 + 128) - at
            slot = stream * (rows // 128 + 2) + segment - (length - rows) // 128
            items.append((stream * rows + at - (length - rows), count, at, slot, -1, first))
    halves = layout.page_bytes(heads.kv_heads, heads.head_dim) // 2
    pages = (torch.rand(len(table), halves, device=device) / 50).half()  # as 16-bit values, or as ranges; codes are any bits
    tails = torch.randn(streams * (rows // 128 + 2), heads.kv_heads, 2, 128 * heads.head_dim, device=device).half()
    q = torch.randn(
        streams * rows, heads.heads, heads.head_dim, device=device, dtype=torch.float32 if device.type == "cpu" else torch.bfloat16
    )
    return Memory(q, tails, pages.view(torch.uint8), torch.tensor(table or [0], dtype=torch.int32, device=device), items)


def launcher(
    bench: Bench, cache: Memory, layout: Layout, choose: Callable[..., Plan | str] = plan, **changes: int
) -> tuple[Callable[[], torch.Tensor], Plan]:
    """A launch that is planned once, as a step's layers share it."""
    chosen = choose(
        [Span(count, start + count) for _, count, start, _, _, _ in cache.items], bench.size.heads, layout, gpu.chip(bench.device)
    )
    if isinstance(chosen, str):
        raise ValueError(chosen)
    chosen = replace(chosen, **changes)
    launch = triton.prepare(chosen, schedule(cache.items, chosen), bench.device)
    scores, out = triton.Scores(bench.size.heads.head_dim**-0.5), torch.empty_like(cache.q)
    return lambda: triton.run(cache.q, cache.tails, cache.pages, cache.table, launch, layout, scores, out), chosen


def right(bench: Bench) -> None:
    """Against the reference in fp64 on the CPU, fresh inputs, memory that is not written poisoned; then bits of several plans."""
    from pitstop.ops import attention
    from pitstop.ops.attention.ref import make_inputs

    seed = int(time.time()) if bench.device.type == "cuda" else 1
    for codec in CODECS:
        layout = codecs.get(codec).layout
        streams = [(300, 1), (120, 20), (1300, 2)] if bench.device.type == "cuda" else [(130, 2)]
        inputs = make_inputs(seed, streams, 4 * 2, 2, 64, torch.float16, layout=layout)
        with dispatch.use("ref"):
            attention.append(inputs.k, inputs.v, inputs.tails, inputs.items)
            attention.seal(inputs.tails, inputs.pages, inputs.items, inputs.table, layout)
        arguments = (inputs.q, inputs.tails, inputs.pages, inputs.items, inputs.table)
        answers = {}
        for backend, device in (("ref", "cpu"), ("triton", bench.device)):
            with dispatch.use(backend):
                answers[backend] = attention.paged_attention(*(tensor.to(device) for tensor in arguments), layout, 0.2).cpu()
        error = float((answers["triton"] - answers["ref"]).abs().max() / max(values.abs().max() for values in inputs.values))
        bench.add(f"{codec}: largest error, of the largest value", error, "", None)
        if not error <= triton.TOLERANCE:
            raise ValueError(f"{codec} is wrong by {error}")
    bits(bench)


def bits(bench: Bench) -> None:
    """How many bits of answers depend on the plan: columns, stages, splits."""
    for codec in CODECS:
        layout = codecs.get(codec).layout
        cache = memory(bench, layout, 2, min(bench.size.length, 2500), 2)
        share = bench.size.heads.share
        changes = [{"columns": c, "rows": c // share, "segments": s} for c in (16, 32) for s in (0, 1, 8)]
        found = [launcher(bench, cache, layout, **change)[0]().clone() for change in changes]
        different = sum(int((answer != found[0]).sum()) for answer in found[1:])
        bench.add(f"{codec}: values that differ among {len(changes)} plans", different, "")


def ceilings(bench: Bench) -> None:
    """What the machine copies and multiplies, as torch asks for it."""
    source = torch.zeros(bench.size.copied // 2, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    bench.ceilings["copy"] = 2 * len(source) / bench.seconds(lambda: target.copy_(source))
    bench.add("copy, read and written", bench.ceilings["copy"] / 1e9, "GB/s")
    dtype = torch.bfloat16
    a, b = (torch.randn(bench.size.square, bench.size.square, device=bench.device, dtype=dtype) for _ in range(2))
    bench.ceilings["product"] = 2 * bench.size.square**3 / bench.seconds(lambda: a @ b)
    bench.add("bf16 matrix product", bench.ceilings["product"] / 1e12, "TFLOP/s")


def decode(bench: Bench) -> None:
    """One token of each stream: bytes of pages and tails a second, beside SDPA on dense memory; the planner beside the fixed tile."""
    size = bench.size
    for codec in CODECS:
        layout = codecs.get(codec).layout
        cache = memory(bench, layout, size.streams, size.length, 1)
        moved = size.streams * (size.length // 128) * layout.page_bytes(size.heads.kv_heads, size.heads.head_dim)
        call, chosen = launcher(bench, cache, layout)
        taken = bench.seconds(call)
        bench.add(f"decode {size.streams} x {size.length}, {codec}", taken * 1e6, "us", moved / taken / bench.ceilings["copy"])
        print(f"   {'; '.join(chosen.why)}")
        for segments in (0, 8, 16):
            bench.add(
                f"   {segments or 'all'} segments a block", bench.seconds(launcher(bench, cache, layout, segments=segments)[0]) * 1e6, "us"
            )
    moved = size.streams * size.length * size.heads.kv_heads * size.heads.head_dim * 4
    others(bench, f"decode {size.streams} x {size.length}", (size.streams, 1, size.length), moved, "copy")


def others(bench: Bench, name: str, shape: tuple[int, int, int], work: float, ceiling: str) -> None:
    """What others offer for the same work on bf16. shape: streams, rows of each, length. Who fails is told of and passed over."""
    for peer, make in PEERS.items():
        try:
            taken = bench.seconds(make(bench, *shape))
        except Exception as error:  # not installed, or does not take the shape
            bench.skipped.append(f"{name}, {peer}: {type(error).__name__}: {error}".splitlines()[0])
            continue
        bench.add(f"{name}, {peer}", taken * 1e6, "us", work / taken / bench.ceilings[ceiling])


def _dense(bench: Bench, streams: int, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v: bf16 [streams, heads, rows or length, head_dim]."""
    heads = bench.size.heads
    shapes = (heads.heads, rows), (heads.kv_heads, length), (heads.kv_heads, length)
    return tuple(torch.randn(streams, *shape, heads.head_dim, device=bench.device, dtype=torch.bfloat16) for shape in shapes)


def _sdpa(bench: Bench, streams: int, rows: int, length: int) -> Callable[[], torch.Tensor]:
    q, k, v = _dense(bench, streams, rows, length)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=rows == length, enable_gqa=True)


def _flex(bench: Bench, streams: int, rows: int, length: int) -> Callable[[], torch.Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = _dense(bench, streams, rows, length)
    mask = create_block_mask(lambda _b, _h, i, j: i + length - rows >= j, None, None, rows, length, device=bench.device.type)
    attend = torch.compile(flex_attention, dynamic=False) if bench.device.type == "cuda" else flex_attention
    return lambda: attend(q, k, v, block_mask=mask, enable_gqa=True)


def _flashinfer(bench: Bench, streams: int, rows: int, length: int) -> Callable[[], torch.Tensor]:
    """Paged, pages of 16 tokens: its usual size."""
    import flashinfer

    heads, size = bench.size.heads, 16
    q, k, v = (one.transpose(1, 2).reshape(-1, one.shape[1], heads.head_dim) for one in _dense(bench, streams, rows, length))
    each = -(-length // size)
    shape = streams, -1, heads.kv_heads, heads.head_dim
    pad = (0, 0, 0, 0, 0, each * size - length)
    cache = tuple(torch.nn.functional.pad(one.view(shape), pad).view(-1, size, *shape[2:]).contiguous() for one in (k, v))
    numbers = {"dtype": torch.int32, "device": bench.device}
    pages = torch.arange(0, streams * each + 1, each, **numbers), torch.arange(streams * each, **numbers)
    last = torch.full((streams,), (length - 1) % size + 1, **numbers)
    space, kinds = torch.empty(128 << 20, dtype=torch.uint8, device=bench.device), {"q_data_type": q.dtype, "kv_data_type": q.dtype}
    if rows == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", use_tensor_cores=True)
        wrapper.plan(*pages, last, heads.heads, heads.kv_heads, heads.head_dim, size, **kinds)
    else:
        starts = torch.arange(0, streams * rows + 1, rows, **numbers)
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(space, "NHD")
        wrapper.plan(starts, *pages, last, heads.heads, heads.kv_heads, heads.head_dim, size, causal=True, **kinds)
    return lambda: wrapper.run(q, cache)


PEERS = {"torch SDPA on dense bf16": _sdpa, "FlexAttention on dense bf16": _flex, "FlashInfer, pages of 16": _flashinfer}


def prefill(bench: Bench) -> None:
    """One stream's prompt in one launch."""
    size = bench.size
    flops = 2 * size.heads.heads * size.heads.head_dim * size.chunk**2  # two products, half of them masked
    for codec in CODECS:
        layout = codecs.get(codec).layout
        call, _ = launcher(bench, memory(bench, layout, 1, size.chunk, size.chunk), layout)
        taken = bench.seconds(call)
        bench.add(f"prefill {size.chunk}, {codec}", taken * 1e6, "us", flops / taken / bench.ceilings["product"])
    others(bench, f"prefill {size.chunk}", (1, size.chunk, size.chunk), flops, "product")


def tiles(bench: Bench) -> None:
    """The planner against the fixed tile: the account's 12.7 %."""
    layout = codecs.get("raw16").layout
    for length in (1024, 2048, 4096, 8192) if bench.device.type == "cuda" else (200,):
        for name, streams, rows in (("decode of 8", 8, 1), ("prefill", 1, min(length, 2048))):
            cache = memory(bench, layout, streams, length, rows)
            ours, theirs = (bench.seconds(launcher(bench, cache, layout, choose)[0]) for choose in (plan, fixed))
            bench.add(f"{name} at {length}: the fixed tile takes, of the planned one", theirs / ours, "times")


def models(bench: Bench) -> None:
    """Whole steps, engine and sampling included: tokens a second, and the weights' and cache's bytes a second beside the copy. What
    steps take that are not replayed from a graph, of one stream."""
    cuda = bench.device.type == "cuda"
    shapes = {"135M": SMOLLM2_135M, "8B": LLAMA3_8B} if cuda else {"tiny": TINY_MODEL}
    for name, shape in shapes.items():
        for kind in BITS:
            source = RandomSource(shape, kind)
            kv = KVConfig(context=1024, guard="off", memory=0 if cuda else 64 << 20)
            engine = Engine(EngineConfig(str(source.path), device=bench.device.type, max_running=64, kv=kv), source)
            engine.warm_up()
            for streams in (1, 8, 64) if cuda else (1, 3):
                seconds, length = _decode_steps(engine, streams, 64 if cuda else 4)
                moved = source.step_bytes + streams * length * page_bytes(codecs.get(kv.codec), shape.kv_shape) / SEGMENT
                what = f"{name}-shaped, {kind}, {streams} streams, whole steps"
                bench.add(what, streams / seconds, "tokens/s", moved / seconds / bench.ceilings["copy"])
            replayed, _ = _decode_steps(engine, 1, 16 if cuda else 4)
            engine._runner._decode = None
            eager, _ = _decode_steps(engine, 1, 16 if cuda else 4)
            bench.add(f"   {name}-shaped, {kind}: steps without a graph take, of those with one", eager / replayed, "times")
            del engine
            gc.collect()


def _decode_steps(engine: Engine, streams: int, steps: int) -> tuple[float, int]:
    """The median seconds of a step that decodes all streams, and the tokens that each had in the middle."""
    prompt = [token % engine.vocab_size for token in range(3, 67)]
    params = SamplingParams(max_tokens=steps + 2, temperature=0.0, ignore_eos=True)
    for number in range(streams):
        engine.submit(Request(id=f"{number}", prompt=[number % 64, *prompt], params=params))
    taken = []
    while engine.busy:
        start = time.perf_counter()
        outputs = engine.step()
        if len(outputs) == streams and all(len(output.tokens) == 1 for output in outputs):
            taken.append(time.perf_counter() - start)
    return sorted(taken)[len(taken) // 2], len(prompt) + steps // 2


SECTIONS = {
    "right": right,
    "ceilings": ceilings,
    "decode": decode,
    "prefill": prefill,
    "tiles": tiles,
    "products": products,
    "rows": by_row,
    "models": models,
}


def table(bench: Bench) -> Iterator[str]:
    yield "| what | figure | unit | of the ceiling |\n| --- | --- | --- | --- |"
    for name, figure, unit, share in bench.rows:
        yield f"| {name.strip()} | {figure:.4g} | {unit} | {'' if share is None else f'{share:.1%}'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes in Triton's interpreter")
    parser.add_argument("--out", type=Path, default=Path("gpu-out"))
    parser.add_argument("--minutes", type=float, default=8)
    arguments = parser.parse_args()
    if not arguments.dry_run and not torch.cuda.is_available():
        sys.exit("no CUDA device here; --dry-run goes the same way without one")
    bench = Bench(*((TINY, "cpu") if arguments.dry_run else (REAL, "cuda")), arguments.out, arguments.minutes * 60)
    bench.run(SECTIONS)
    print(*table(bench), sep="\n")
    print(*(f"not measured: {reason}" for reason in bench.skipped), sep="\n")
    print(json.dumps(bench.report()))


if __name__ == "__main__":
    main()
