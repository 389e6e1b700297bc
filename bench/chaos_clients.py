"""Clients with bad manners, and what the others notice of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import time
from collections.abc import Awaitable, Callable

import texts
from chaos_client import Answer, Prober, ask, post
from chaos_server import Kit, Server, serving, show

from pitstop.stats.percentiles import percentile

POLITE = 4
READERS = 4
SLOWER = 2.0
"""Times their p95 without the others that polite clients may see."""


async def manners(kit: Kit) -> None:
    """Slow readers, half-open sockets, slow bodies, floods of headers, beside polite clients."""
    seconds = kit.size(15, 60)
    async with serving(kit, "--context", "4096", "--kv-memory", "512MiB") as server:
        await _polite(server, 3)
        # the same long streams, read as they come: what slow reading adds is the question, not what the streams cost
        without, _ = await _beside(server, seconds, [_fast_reader] * READERS)
        attacks = [_slow_reader] * READERS + [_half_open] * 100 + [_half_head] * 50 + [_slow_body] * 50 + [_flood] * 4
        beside, probes = await _beside(server, seconds, attacks)
        rejected, restarts = await server.metrics("pitstop_requests_rejected_total", "pitstop_worker_restarts_total")
    bad = [answer.error for answer in (*without, *beside) if not answer.whole]
    before, after = (percentile([answer.seconds for answer in group], 95) for group in (without, beside))
    kit.promise(f"p95 of the polite within {SLOWER:g} times", after < SLOWER * before, f"{show(before)} without, {show(after)} beside them")
    kit.promise("every polite answer is whole", not bad, f"{len(without)} and {len(beside)} answers {'; '.join(bad[:2])}".strip())
    kit.promise("probes within 1 s", max(probes) < 1, f"p95 {show(percentile(probes, 95))}, longest {show(max(probes))}")
    kit.promise("the worker lives", restarts == 0, f"{restarts:.0f} restarts; {rejected:.0f} connections or requests refused")
    kit.figures |= {"p95_without_s": round(before, 3), "p95_beside_s": round(after, 3), "probe_longest_s": round(max(probes), 3)}


async def _beside(server: Server, seconds: float, rude: list[Callable[[Server, int], Awaitable]]) -> tuple[list[Answer], list[float]]:
    """Answers to polite clients for so long, beside others, each of which begins again when it has come to its end; latencies of probes."""

    async def again(act: Callable[[Server, int], Awaitable], number: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                await act(server, number)
            await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(again(act, number)) for number, act in enumerate(rude)]
    await asyncio.sleep(2)
    with Prober(server.port, ("/livez", "/readyz"), 0.05) as prober:
        answers = await _polite(server, seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(1)
    return answers, [value for seen in prober.seen.values() for value in seen.latencies]


_turns = itertools.count()


async def _polite(server: Server, seconds: float) -> list[Answer]:
    """Short questions, one after another from each client."""
    answers: list[Answer] = []
    end, text = time.monotonic() + seconds, texts.read()

    async def client() -> None:
        while time.monotonic() < end:
            begin = 997 * next(_turns) % 500_000
            answers.append(await ask(server.port, *server.completion(text[begin : begin + 200], 16)))

    await asyncio.gather(*(client() for _ in range(POLITE)))
    return answers


def _long(server: Server, number: int) -> bytes:
    path, body = server.completion(f"Story {number}: ", 1500, logprobs=5)
    return post(path, json.dumps(body).encode())


async def _fast_reader(server: Server, number: int) -> None:
    await ask(server.port, *server.completion(f"Story {number}: ", 1500, logprobs=5))


async def _connect(server: Server, first: bytes, receive_buffer: int = 0) -> socket.socket:
    raw = socket.socket()
    if receive_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", server.port))
    await loop.sock_sendall(raw, first)
    return raw


async def _slow_reader(server: Server, number: int) -> None:
    """Asks for a long answer and takes 50 bytes of it a second."""
    raw = await _connect(server, _long(server, number), 4096)
    with raw:
        while await asyncio.get_running_loop().sock_recv(raw, 50):
            await asyncio.sleep(1)


async def _half_open(server: Server, number: int) -> None:
    """Connects and says nothing."""
    with await _connect(server, b"") as raw:
        await asyncio.get_running_loop().sock_recv(raw, 1)


async def _half_head(server: Server, number: int) -> None:
    """A head, a byte at a time, that does not end."""
    with await _connect(server, b"GET /livez HTTP/1.1\r\n") as raw:
        while True:
            await asyncio.get_running_loop().sock_sendall(raw, b"X")
            await asyncio.sleep(0.2)


async def _slow_body(server: Server, number: int) -> None:
    """A body, a byte at a time."""
    whole = _long(server, number)
    head = whole.index(b"\r\n\r\n") + 4
    with await _connect(server, whole[:head]) as raw:
        for byte in whole[head:]:
            await asyncio.get_running_loop().sock_sendall(raw, bytes([byte]))
            await asyncio.sleep(0.2)


async def _flood(server: Server, number: int) -> None:
    """Headers without end, as fast as they are taken."""
    with await _connect(server, b"GET /livez HTTP/1.1\r\n") as raw:
        for count in range(2000):
            await asyncio.get_running_loop().sock_sendall(raw, b"X-%d: %s\r\n" % (count, b"x" * 1000))
