"""A server in a process of its own, and a client that streams completions from it over plain sockets, as little work as it can be."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from peers_install import TOOLS

START_TIMEOUT = 120.0
"""Seconds until it must be ready."""


@dataclass(frozen=True)
class Stream:
    """One answer as it came: times on the client's clock, and how many tokens the server counted."""

    first: float
    last: float
    tokens: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(command: list[str], ready: str) -> Iterator[subprocess.Popen]:
    """A server process once the URL `ready` answers 200; ended with the context. Exits, saying so, when it does not come up."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait(process, ready)
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def server(model: str, options: list[str]) -> Iterator[int]:
    """A server without a prefix cache, as model "bench", on a free port: the port."""
    port = free_port()
    command = [sys.executable, "-m", "pitstop.cli", "serve", model, "--port", str(port), "--model-name", "bench", "--no-prefix-cache"]
    with running([*command, "--log-level", "warning", *options], f"http://127.0.0.1:{port}/readyz"):
        yield port


@contextmanager
def llama_server(model: Path, threads: int, slots: int, context: int, *options: str) -> Iterator[tuple[str, list[str]]]:
    """llama.cpp's server, with a cache for `slots` requests of `context` tokens at once: its URL, and its command without paths."""
    tool = TOOLS / "llama-server"
    if not tool.exists():
        sys.exit(f"{tool} is missing; `python bench/peers_install.py` builds it")
    port, count = free_port(), str(threads)
    words = ["--port", str(port), "-np", str(slots), "-c", str(slots * context), "-t", count, "-tb", count, *options]
    with running([str(tool), "-m", str(model), *words, "--log-disable"], f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}", [tool.name, "-m", model.name, *words]


def _wait(process: subprocess.Popen, url: str) -> None:
    end = time.monotonic() + START_TIMEOUT
    while time.monotonic() < end:
        if process.poll() is not None:
            sys.exit(f"the server ended with status {process.returncode}")
        try:
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    sys.exit(f"the server was not ready after {START_TIMEOUT:.0f} s")


async def stream(port: int, prompt: list[int], tokens: int) -> Stream:
    """The greedy completion of a prompt, past any end token. Raises RuntimeError with the server's answer when it refuses."""
    body = {"model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    payload = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    first = last = 0.0
    usage, lines = b"", []
    async for line in reader:
        if not line.startswith(b"data: {"):
            lines.append(line)
        elif b'"choices":[]' in line:
            usage = line
        else:
            last = time.perf_counter()
            first = first or last
    writer.close()
    await writer.wait_closed()
    if not usage:
        raise RuntimeError(f"no whole answer: {b''.join(lines)[:1000].decode(errors='replace')}")
    return Stream(first, last, json.loads(usage[6:])["usage"]["completion_tokens"])


async def together(port: int, prompts: list[list[int]], tokens: int) -> list[Stream]:
    """All prompts at once."""
    return await asyncio.gather(*(stream(port, prompt, tokens) for prompt in prompts))
