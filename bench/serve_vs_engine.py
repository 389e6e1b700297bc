"""What does the server cost? Throughput of 32 streams over HTTP beside the engine's own, in alternating turns; 0.85 is the least.

    python bench/serve_vs_engine.py [--model NAME_OR_PATH] [--turns 3] [--streams 32] [--tokens 128]

Throughput: all answers' tokens over the time from the first request to the last token, prompts of 32 tokens included, greedy, without a
prefix cache. The engine runs in one process; the server is two, and its client, this process, is a third on the same cores. The figure
is the median; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

import texts
from engines import pitstop_throughput
from measure import Case
from others import Others
from streams import server, together

from pitstop.config import usable_cores
from pitstop.models.weights.fetch import pull
from pitstop.models.weights.gguf import open_gguf
from pitstop.text.tokenizer import Tokenizer

LEAST = 0.85


def served(model: Path, threads: int, prompts: list[list[int]], tokens: int) -> float:
    """Answer tokens a second of a server of its own, as measure.throughput has it."""
    with server(str(model), ["--threads", str(threads)]) as port:
        asyncio.run(together(port, prompts, 4))
        begin = time.perf_counter()
        streams = asyncio.run(together(port, prompts, tokens))
    return sum(stream.tokens for stream in streams) / (max(stream.last for stream in streams) - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=usable_cores())
    options = parser.parse_args()
    path = Path(pull(options.model))
    prompts = texts.prompts(Tokenizer(open_gguf(path).vocabulary()), texts.read(), Case(options.streams, 32, options.tokens))
    engine, whole = [], []
    with Others() as others:
        for turn in range(options.turns):
            engine.append(pitstop_throughput(path, options.threads, prompts, options.tokens))
            whole.append(served(path, options.threads, prompts, options.tokens))
            print(f"turn {turn + 1}: engine {engine[-1]:.1f} tokens/s, server {whole[-1]:.1f}: {whole[-1] / engine[-1]:.3f}", flush=True)
    print(others)
    alone, through = statistics.median(engine), statistics.median(whole)
    print(f"{options.streams} streams: engine {alone:.1f}, server {through:.1f}: {through / alone:.3f} (at least {LEAST})")
    result = {"streams": options.streams, "engine": round(alone, 1), "server": round(through, 1), "ratio": round(through / alone, 3)}
    print(json.dumps(result | {"others": round(others.share, 3)}))


if __name__ == "__main__":
    main()
