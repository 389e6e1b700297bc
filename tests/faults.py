"""Faults that a server under test may have, planted between the real front and its clients: `fake_server.py --fault NAME[=VALUE]`.

slow-first=MS   the first piece of every answer comes so much later
drop=N          every Nth streamed answer is cut after three pieces, without an error event and without [DONE]
leak=BYTES      so much memory is kept for every request
batch           an answer is wrong when another request was being answered as it began
pairs           two tokens a chunk, and the usage counts chunks
stall=S         once, S seconds after the first answer began, nothing is sent for 2 seconds
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

STALL = 2.0


class Fault:
    """ASGI middleware around generating routes; everything else passes."""

    def __init__(self, app: ASGIApp, fault: str) -> None:
        self._app = app
        self._name, _, value = fault.partition("=")
        self._value = float(value or 0)
        self._kept: list[bytes] = []
        self._streams = self._in_flight = 0
        self._stall_at: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("completions"):
            await self._app(scope, receive, send)
            return
        if self._name == "leak":
            self._kept.append(os.urandom(int(self._value)))
        self._streams += 1
        self._in_flight += 1
        answer = _Answer(self, send, self._streams, crowded=self._in_flight > 1)
        try:
            await self._app(scope, receive, answer.send)
        except _Cut:
            return  # the server closes a connection whose answer is not complete
        finally:
            self._in_flight -= 1

    async def delay(self, first: bool) -> None:
        now = time.monotonic()
        if self._name == "slow-first" and first:
            await asyncio.sleep(self._value / 1000)
        if self._name == "stall":
            self._stall_at = self._stall_at or now + self._value
            if self._stall_at <= now < self._stall_at + STALL:
                await asyncio.sleep(self._stall_at + STALL - now)

    def alter(self, answer: _Answer, body: bytes) -> bytes:
        """The body of one message, as the faulty server sends it."""
        if self._name == "drop" and answer.number % int(self._value) == 0 and answer.pieces > 3:
            raise _Cut
        if self._name == "batch" and answer.crowded:
            return re.sub(rb'("(?:text|content)":\s*")([^"\\])', lambda found: found[1] + (b"x" if found[2] != b"x" else b"y"), body)
        if self._name == "pairs":
            return answer.paired(body)
        return body


class _Cut(Exception):
    pass


class _Answer:
    """One response on its way out."""

    def __init__(self, fault: Fault, send: Send, number: int, crowded: bool) -> None:
        self._fault, self._send = fault, send
        self.number, self.crowded = number, crowded
        self.pieces = 0
        self._held: dict | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and message.get("body"):
            await self._fault.delay(first=self.pieces == 0)
            self.pieces += 1
            message = message | {"body": self._fault.alter(self, message["body"])}
        await self._send(message)

    def paired(self, body: bytes) -> bytes:
        """Events of text are held until a second one comes; usage is halved."""
        if not body.startswith(b"data: "):
            whole = json.loads(body)
            _halve(whole.get("usage"))
            return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode().ljust(len(body))  # the head has told the length
        return b"".join(map(self._pair, (line for line in body.split(b"\n\n") if line)))

    def _pair(self, line: bytes) -> bytes:
        held, self._held = self._held, None
        if line == b"data: [DONE]":
            return (_event(held) if held else b"") + line + b"\n\n"
        event = json.loads(line.removeprefix(b"data: "))
        _halve(event.get("usage"))
        if held and _text(event) is not None:
            _join(held, event)
            return _event(held)
        if _text(event) and event["choices"][0]["finish_reason"] is None:
            self._held = event
            return _event(held) if held else b""
        return (_event(held) if held else b"") + _event(event)


def _halve(usage: dict | None) -> None:
    """As a server that counts its chunks of two tokens: consistent, and wrong."""
    if usage:
        usage["completion_tokens"] = -(-usage["completion_tokens"] // 2)
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


def _text(event: dict) -> str | None:
    """The text that an event brings; None when it brings no choice."""
    if not event.get("choices"):
        return None
    choice = event["choices"][0]
    return choice["text"] if "text" in choice else choice["delta"].get("content") or ""


def _join(first: dict, second: dict) -> None:
    choice, other = first["choices"][0], second["choices"][0]
    if "text" in choice:
        choice["text"] += other["text"]
    else:
        choice["delta"]["content"] += _text(second)
    choice["finish_reason"] = other["finish_reason"]


def _event(event: dict) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"
