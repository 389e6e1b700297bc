"""Clients of a server under chaos: plain sockets, so that five hundred of them cost little, and a prober in a process of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

LIMIT = 1 << 22
"""Bytes of an event at most."""


@dataclass
class Answer:
    """What came. Times are time.monotonic(): when it was asked, when each event with text came, when it ended."""

    asked: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    events: list[dict] = field(default_factory=list)  # of a stream; of another answer the one body
    pieces: list[float] = field(default_factory=list)
    ended: float = 0.0
    done: bool = False  # a stream came to its [DONE], another answer to its end
    broken: str = ""  # how the connection ended too early

    @property
    def error(self) -> str:
        """The server's or the connection's error, "" for none."""
        found = next((event["error"] for event in self.events if "error" in event), None)
        return found["message"] if found else self.broken or ("" if self.done else "the connection ended before the answer")

    @property
    def whole(self) -> bool:
        return self.status == 200 and not self.error

    @property
    def seconds(self) -> float:
        return self.ended - self.asked

    def longest_gap(self, since: float) -> float:
        """Seconds between two pieces, the second of which came after `since`; 0 when there are no two."""
        pairs = zip(self.pieces, self.pieces[1:], strict=False)
        return max((later - earlier for earlier, later in pairs if later > since), default=0.0)

    def content(self) -> list:
        """Choices, joined over the stream, and the count of the usage: what does not depend on time and place."""
        choices: dict[int, dict] = {}
        for event in self.events:
            for part in event.get("choices", ()):
                choice = choices.setdefault(part["index"], {"text": "", "logprobs": [], "finish": None})
                said = part.get("delta") or part.get("message") or part
                choice["text"] += said.get("text") or said.get("content") or ""
                choice["logprobs"] += _rows(part.get("logprobs"))
                choice["finish"] = part.get("finish_reason") or choice["finish"]
        usage = next((event["usage"] for event in reversed(self.events) if event.get("usage")), {})
        return [*(choices[index] for index in sorted(choices)), usage.get("prompt_tokens"), usage.get("completion_tokens")]


def _rows(logprobs: dict | None) -> list:
    if not logprobs:
        return []
    if "content" in logprobs:
        return logprobs["content"]
    return [list(row) for row in zip(*(logprobs[key] for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")), strict=True)]


async def ask(port: int, path: str, body: dict, *, pieces: int | None = None) -> Answer:
    """One request on a connection of its own, which is cut after so many pieces of the answer. Never raises for a bad answer."""
    answer = Answer(time.monotonic())
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LIMIT)
    except OSError as error:
        answer.broken, answer.ended = f"no connection: {error}", time.monotonic()
        return answer
    try:
        writer.write(post(path, json.dumps(body).encode()))
        await _read(reader, answer, pieces)
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        answer.broken = f"{type(error).__name__}: {error}"
    finally:
        answer.ended = time.monotonic()
        writer.transport.abort() if pieces is not None else writer.close()
    return answer


def post(path: str, body: bytes) -> bytes:
    """The bytes of a request."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _read(reader: asyncio.StreamReader, answer: Answer, most: int | None) -> None:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    answer.status = int(first.split()[1])
    answer.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if "text/event-stream" not in answer.headers.get("content-type", ""):
        answer.events.append(json.loads(await reader.readexactly(int(answer.headers["content-length"]))))
        answer.done = True
        return
    async for line in reader:  # the lines of chunked encoding lie between those of events
        if line.startswith(b"data: [DONE]"):
            answer.done = True
        elif line.startswith(b"data: {"):
            answer.events.append(event := json.loads(line[6:]))
            if event.get("choices"):
                answer.pieces.append(time.monotonic())
                if most is not None and len(answer.pieces) >= most:
                    return


async def together(port: int, requests: Sequence[tuple[str, dict]]) -> list[Answer]:
    """All at once."""
    return await asyncio.gather(*(ask(port, path, body) for path, body in requests))


@dataclass
class Seen:
    """Of one probe route: latencies in seconds, and each answer that was not 200: seconds after the prober's start, and what it was."""

    latencies: list[float] = field(default_factory=list)
    alarms: list[tuple[float, str]] = field(default_factory=list)


class Prober:
    """As a context, asks probe routes one after another all the time; `seen` after it. Its own process: it waits for no other client."""

    def __init__(self, port: int, paths: Sequence[str], interval: float = 0.1) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=_probe, args=(port, tuple(paths), interval, theirs), daemon=True)
        self.seen: dict[str, Seen] = {}

    def __enter__(self) -> Prober:
        self._process.start()
        self._pipe.recv()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pipe.send(None)
        self.seen = self._pipe.recv()
        self._process.join()


def _probe(port: int, paths: tuple[str, ...], interval: float, pipe: Connection) -> None:
    seen = {path: Seen() for path in paths}
    pipe.send(None)
    start = time.monotonic()
    while not pipe.poll(interval):
        for path in paths:
            asked = time.monotonic()
            what: Any
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                connection.request("GET", path)
                response = connection.getresponse()
                what = response.status if response.status == 200 else f"{response.status} {response.read(500).decode()}"
            except OSError as error:
                what = f"{type(error).__name__}: {error}"
            finally:
                connection.close()
            seen[path].latencies.append(time.monotonic() - asked)
            if what != 200:
                seen[path].alarms.append((asked - start, what))
    pipe.send(seen)
