"""How fast does the whole server answer? Tokens/s at 1, 8 and 32 streams and prefill at 512 and 2,048 tokens, over HTTP, streamed.

    python bench/serve_baseline.py [--model NAME_OR_PATH] [--tokens 64] [SERVER OPTIONS …]

Prints the ceiling first: the memory bandwidth of this machine over the bytes of fp32 weights that a decoded token must read. The client
is this process, the server another; prompts are real text, all different, and the prefix cache is off. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
from ceiling import read_bandwidth

from pitstop.models.weights.fetch import pull
from pitstop.models.weights.gguf import open_gguf
from pitstop.text.tokenizer import Tokenizer

TEXT = "\n".join(path.read_text() for path in sorted(Path(httpx.__file__).parent.glob("*.py")))


@contextmanager
def server(model: str, options: list[str]):
    """A server of its own on a free port; its base URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pitstop.cli", "serve", model, "--port", str(port), "--no-prefix-cache", "--log-level", "warning"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
            if process.poll() is not None:
                sys.exit(f"the server ended with status {process.returncode}")
            try:
                if httpx.get(f"{url}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


async def stream(client: httpx.AsyncClient, prompt: list[int], tokens: int) -> tuple[float, float, int]:
    """(time of the first token, time of the last, completion tokens as the server counts them)."""
    body = {"model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    times, count = [], 0
    async with client.stream("POST", "/v1/completions", json=body, timeout=600) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                count = (event.get("usage") or {}).get("completion_tokens", count)
                if event["choices"]:
                    times.append(time.perf_counter())
    return times[0], times[-1], count


async def decode(url: str, prompts: list[list[int]], tokens: int) -> float:
    """Tokens/s of all streams together, prompts of 32 tokens included in the time after the first stream's first token."""
    async with httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=None)) as client:
        results = await asyncio.gather(*(stream(client, prompt, tokens) for prompt in prompts))
    elapsed = max(last for _, last, _ in results) - min(first for first, _, _ in results)
    return (sum(count for *_, count in results) - 1) / elapsed


async def prefill(url: str, prompt: list[int]) -> float:
    """Prompt tokens/s: the prompt's length over the time to first token."""
    async with httpx.AsyncClient(base_url=url) as client:
        start = time.perf_counter()
        first, *_ = await stream(client, prompt, 1)
    return len(prompt) / (first - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=64)
    args, options = parser.parse_known_args()
    file = open_gguf(pull(args.model))
    c = file.config
    per_layer = c.width * c.head_dim * (2 * c.heads + 2 * c.kv_heads) + 3 * c.width * c.ffn
    weight_bytes = 4 * (c.layers * per_layer + c.vocab_size * c.width)
    bandwidth = read_bandwidth(1.0)
    ceiling = bandwidth * 1e9 / weight_bytes
    print(f"ceiling: {bandwidth:.1f} GB/s read, {weight_bytes / 1e6:.0f} MB of fp32 weights a token: {ceiling:.1f} tokens/s for one stream")
    text = Tokenizer(file.vocabulary()).encode(TEXT)
    result = {"stream_gbs": round(bandwidth, 1), "ceiling_decode_1": round(ceiling, 1)}
    with server(args.model, ["--model-name", "bench", *options]) as url:
        asyncio.run(decode(url, [text[:32]], 8))  # warm-up
        for streams in (1, 8, 32):
            prompts = [text[1000 + 97 * i : 1032 + 97 * i] for i in range(streams)]
            speed = asyncio.run(decode(url, prompts, args.tokens))
            result[f"decode_{streams}"] = round(speed, 1)
            print(f"decode, {streams:2d} streams: {speed:7.1f} tokens/s ({speed / ceiling:.2f} of the one-stream ceiling)")
        for length in (512, 2048):
            speed = asyncio.run(prefill(url, text[8000 : 8000 + length]))
            result[f"prefill_{length}"] = round(speed, 1)
            print(f"prefill, {length:4d} tokens: {speed:7.1f} tokens/s")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
