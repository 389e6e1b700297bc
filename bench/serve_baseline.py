"""How fast does the whole server answer? Tokens/s at 1, 8 and 32 streams and prefill at 512 and 2,048 tokens, over HTTP, streamed.

    python bench/serve_baseline.py [--model NAME_OR_PATH] [--tokens 64] [SERVER OPTIONS …]

Prints the ceiling first: the memory bandwidth of this machine over the bytes of weights, as stored, that a decoded token must read. The
client is this process, the server another; prompts are real text, all different, and the prefix cache is off. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import texts
from ceiling import read_bandwidth, weight_bytes
from measure import Case
from streams import server, stream, together

from pitstop.models.weights.fetch import pull
from pitstop.models.weights.gguf import open_gguf
from pitstop.text.tokenizer import Tokenizer


async def decode(port: int, prompts: list[list[int]], tokens: int) -> float:
    """Tokens/s of all streams together, prompts of 32 tokens included in the time after the first stream's first token."""
    results = await together(port, prompts, tokens)
    elapsed = max(result.last for result in results) - min(result.first for result in results)
    return (sum(result.tokens for result in results) - 1) / elapsed


async def prefill(port: int, prompt: list[int]) -> float:
    """Prompt tokens/s: the prompt's length over the time to first token."""
    start = time.perf_counter()
    result = await stream(port, prompt, 1)
    return len(prompt) / (result.first - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=64)
    args, options = parser.parse_known_args()
    file = open_gguf(pull(args.model))
    tokenizer, text = Tokenizer(file.vocabulary()), texts.read()
    weights, bandwidth = weight_bytes(file), read_bandwidth(1.0)
    ceiling = bandwidth * 1e9 / weights
    print(f"ceiling: {bandwidth:.1f} GB/s read, {weights / 1e6:.0f} MB of weights a token: {ceiling:.1f} tokens/s for one stream")
    result = {"stream_gbs": round(bandwidth, 1), "ceiling_decode_1": round(ceiling, 1)}
    with server(args.model, options) as port:
        for streams in (1, 8, 32):
            prompts = texts.prompts(tokenizer, text, Case(streams, 32, args.tokens))
            asyncio.run(together(port, prompts, 4))  # warm-up
            speed = asyncio.run(decode(port, prompts, args.tokens))
            result[f"decode_{streams}"] = round(speed, 1)
            print(f"decode, {streams:2d} streams: {speed:7.1f} tokens/s ({speed / ceiling:.2f} of the one-stream ceiling)")
        for length in (512, 2048):
            speed = asyncio.run(prefill(port, texts.prompts(tokenizer, text, Case(1, length, 1))[0]))
            result[f"prefill_{length}"] = round(speed, 1)
            print(f"prefill, {length:4d} tokens: {speed:7.1f} tokens/s")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
