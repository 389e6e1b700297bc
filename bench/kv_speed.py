"""How fast is each KV codec against our own 16-bit cache, and against llama.cpp's caches? Decode of 1 and 8 streams, and prefill.

    python bench/kv_speed.py [--model NAME_OR_PATH] [--codecs int8,int4] [--contexts 512,2048,4096,8000] [--turns 5] [--quick] …

Run it on an idle machine. All codecs live in one process and take turns of a few steps each; a figure is the median of its turns, in
tokens a second, a ratio that of the medians. The ceiling comes first: weights and KV read as fast as memory gives them. To have many deep
streams without minutes of prefill, one stream is computed and its sealed segments are copied into everybody's pages: the same bytes to
read, each stream its own. llama.cpp runs in every cache type, with its fastest weights, one stream. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import corpora
import peers_install
import torch
from ceiling import read_bandwidth, weight_bytes
from engines import LlamaCpp
from measure import Case
from others import MUCH, Others
from tqdm import tqdm

from pitstop import LLM, SamplingParams, codecs
from pitstop.config import usable_cores
from pitstop.engine.runner import Runner, Running
from pitstop.kv.capacity import page_bytes, stream_pages, tail_bytes
from pitstop.models.weights.fetch import pull
from pitstop.models.weights.gguf import open_gguf
from pitstop.ops import dispatch
from pitstop.types import SEGMENT, KVShape, Request, Sampled, StepPlan, StepResult

BASE = "raw16"
STEPS = 12
"""Of decoding in one turn."""
STREAMS = (1, 8)
MEMORY = 2 << 30
"""Bytes of each codec's pool: eight streams of 8K in 16 bits. Only what is written takes room."""
PEERS = (
    *(LlamaCpp(kind, flash) for kind, flash in itertools.product(("as shipped", "Q4_0", "Q8_0"), ("off", "on"))),
    *(LlamaCpp(kind, "on", cache) for kind, cache in itertools.product(("as shipped", "Q4_0", "Q8_0"), ("q8_0", "q4_0"))),
)


class Engine:
    """One codec's engine, without a prefix cache."""

    def __init__(self, model: Path, codec: str, threads: int) -> None:
        self.llm = LLM(model, codec=codec, threads=threads, device="cpu", prefix_cache=False, max_running=max(STREAMS), memory=MEMORY)
        self.codec = codecs.get(codec)
        self._engine = self.llm.engine
        self._segments = torch.empty(0)
        self._tail = torch.empty(0)

    def prefill(self, prompt: list[int]) -> float:
        """Prompt tokens a second to the first token. Keeps what the stream had in the cache."""
        plans, original = [], Runner.launch

        def keep(runner: Runner, plan: StepPlan, before: Running | None) -> Running:
            plans.append(plan)
            return original(runner, plan, before)

        with mock.patch.object(Runner, "launch", keep):
            begin = time.perf_counter()
            self._submit("prefill", prompt, 1)
            while self._engine.busy:
                self._engine.step()
            spent = time.perf_counter() - begin
        store, last = self._engine._runner.store, plans[-1].spans[0]
        self._segments = store.pages[:, last.pages].clone()
        self._tail = store.tails[:, last.pieces[-1].tail].clone()
        return len(prompt) / spent

    def place(self, prompt: list[int], streams: int) -> None:
        """So many streams at the prompt's end, each with a copy of what the prefill left: nothing is computed but a warm-up."""
        store, last = self._engine._runner.store, self._segments.shape[1] - 1

        def copied(runner: Runner, plan: StepPlan, before: Running | None) -> Running:
            for span in plan.spans:  # streams that came first decode while the others come, and may seal a segment more
                store.pages[:, span.pages] = self._segments[:, [min(i, last) for i in range(len(span.pages))]]
                store.tails[:, [piece.tail for piece in span.pieces]] = self._tail[:, None]
            return Running(plan, SimpleNamespace(chosen=None), 0.0, 0)

        def sampled(runner: Runner, running: Running) -> StepResult:
            return {span.request.id: Sampled([0]) for span in running.plan.spans if span.samples}

        with mock.patch.object(Runner, "launch", copied), mock.patch.object(Runner, "finish", sampled):
            for stream in range(streams):
                self._submit(str(stream), prompt, self.llm.engine.context - len(prompt))
            while len(self._engine.step()) < streams:
                pass
        self.decode(2)

    def decode(self, steps: int) -> float:
        """Tokens a second of all streams together, over so many steps."""
        begin = time.perf_counter()
        tokens = sum(len(output.tokens) for _ in range(steps) for output in self._engine.step())
        return tokens / (time.perf_counter() - begin)

    def clear(self, streams: int) -> None:
        for stream in range(streams):
            self._engine.cancel(str(stream))

    def read_bytes(self, shape: KVShape, context: int) -> float:
        """Of the cache, that decoding a token after so many reads."""
        sealed = stream_pages(context, self.codec.lead_pages) * page_bytes(self.codec, shape)
        return sealed + context % SEGMENT / SEGMENT * tail_bytes(self.codec, shape)

    def _submit(self, name: str, prompt: list[int], tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        self._engine.submit(Request(id=name, prompt=prompt, params=params))


def prefills(engines: dict[str, Engine], prompt: list[int], turns: int) -> dict[str, list[float]]:
    for engine in engines.values():
        engine.prefill(prompt[:SEGMENT])
    return _turns(engines, turns, lambda engine: engine.prefill(prompt))


def decodes(engines: dict[str, Engine], prompt: list[int], streams: int, turns: int) -> dict[str, list[float]]:
    for engine in engines.values():
        engine.place(prompt, streams)
    figures = _turns(engines, turns, lambda engine: engine.decode(STEPS))
    for engine in engines.values():
        engine.clear(streams)
    return figures


def _turns(engines: dict[str, Engine], turns: int, one: Callable[[Engine], float]) -> dict[str, list[float]]:
    """Each codec's figures, in turns that alternate."""
    figures: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(turns):
        for name, engine in engines.items():
            figures[name].append(one(engine))
    return figures


def own_rows(engines: dict[str, Engine], prompt: list[int], options: argparse.Namespace, limit: Limit) -> Iterator[dict]:
    context = len(prompt)
    cases = {"prefill": (1, lambda: prefills(engines, prompt, options.prefill_turns))}
    cases |= {f"decode_{n}": (n, lambda n=n: decodes(engines, prompt, n, options.turns)) for n in STREAMS}
    for case, (streams, measure) in cases.items():
        with Others() as others:
            figures = measure()
        base = statistics.median(figures[BASE])
        for name, values in figures.items():
            median = statistics.median(values)
            row = {"case": case, "context": context, "codec": name, "speed": round(median, 1), "ratio": round(median / base, 3)}
            if case != "prefill":
                row["ceiling"] = round(limit.decode(streams, engines[name].read_bytes(limit.shape, context)), 1)
            yield row | {"turns": [round(value, 1) for value in values], "others": round(others.share, 3)}


def peer_rows(model: Path, contexts: list[int], threads: int) -> Iterator[dict]:
    """Each cache type's best variant: all of them run at the shortest context, the best at the others."""
    running = list(PEERS)
    for context in contexts:
        for case, shape in (("prefill", Case(1, context, 1)), ("decode_1", Case(1, context, STEPS))):
            speeds = {peer: peer.rate(shape, model, threads) for peer in tqdm(running, desc=f"llama.cpp {case} {context}", leave=False)}
            best = {cache: max((p for p in running if p.cache == cache), key=speeds.get) for cache in ("f16", "q8_0", "q4_0")}
            for cache, peer in best.items():
                row = {"case": case, "context": context, "codec": f"llama.cpp {cache}"}
                yield row | {"speed": round(speeds[peer], 1), "variant": str(peer)}
        running = list(best.values())  # those best at decoding


@dataclass(frozen=True)
class Limit:
    """read: GB/s (10⁹ bytes). weights: bytes that a step reads."""

    read: float
    weights: int
    shape: KVShape

    def decode(self, streams: int, cache: float) -> float:
        """Tokens a second of all streams when weights and caches (bytes each) are read as fast as memory gives them."""
        return streams * self.read * 1e9 / (self.weights + streams * cache)


def show(row: dict) -> None:
    ratio = f"{row['ratio']:6.2f} × {BASE}" if "ratio" in row else f"{row['variant']:>14}"
    ceiling = f"   ceiling {row['ceiling']:8.1f}" if "ceiling" in row else ""
    busy = "   OTHERS BUSY: measure again" if row.get("others", 0) > MUCH else ""
    tqdm.write(f"{row['case']:10}{row['context']:6}  {row['codec']:28}{row['speed']:9.1f} tokens/s  {ratio}{ceiling}{busy}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--codecs", default="int8;k8v4;k5v4;int4", help="separated by semicolons; beside raw16")
    parser.add_argument("--contexts", default="512,2048,4096,8000")
    parser.add_argument("--turns", type=int, default=5, help="of decoding")
    parser.add_argument("--prefill-turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one turn of prefill and three of decoding, up to 2048 tokens")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--threads", type=int, default=usable_cores())
    corpora.add_options(parser)
    options = parser.parse_args()
    if options.quick:
        options.contexts, options.turns, options.prefill_turns = "512,2048", 3, 1
    options.contexts = sorted(int(context) for context in options.contexts.split(","))
    return options


def main() -> None:
    options = arguments()
    model = pull(options.model)
    file = open_gguf(model)
    dispatch.set_threads(options.threads)
    shape = file.config.kv_shape
    limit = Limit(read_bandwidth(1.0), weight_bytes(file), shape)
    print(f"ceiling: {limit.read:.1f} GB/s read, {limit.weights / 1e6:.0f} MB of weights a step; {options.threads} threads", flush=True)
    names = dict.fromkeys((BASE, *options.codecs.split(";")))
    engines = {name: Engine(model, name, options.threads) for name in tqdm(names, desc="loading", leave=False)}
    ids = engines[BASE].llm.tokenizer.encode(corpora.read("english", options.english)[: 16 * max(options.contexts)])
    rows = []
    for context in tqdm(options.contexts, desc="contexts"):
        for row in own_rows(engines, ids[:context], options, limit):
            show(row)
            rows.append(row)
    if not options.no_peers:
        peers_install.install(options.threads)
        for row in peer_rows(Path(file.path), options.contexts, options.threads):
            show(row)
            rows.append(row)
    print(json.dumps({"stream_gbs": round(limit.read, 1), "rows": rows}))


if __name__ == "__main__":
    main()
