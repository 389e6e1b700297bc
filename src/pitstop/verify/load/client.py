"""A client that times a streamed answer. Plain blocking sockets by http.client; under Locust, gevent makes them cooperative."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pitstop.verify.load.records import Dialect, Job, Record, Work

_READ = 1 << 16


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


def request_body(dialect: Dialect, model: str, job: Job) -> bytes:
    """A greedy streamed request that asks for usage."""
    prompt = {"messages": [{"role": "user", "content": job.prompt}]} if dialect.chat else {"prompt": job.prompt}
    fixed = {"model": model, "max_tokens": job.max_tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(fixed | prompt | dialect.fields).encode()


class Client:
    """Sends a work's jobs, each over a connection of its own, as callers who come once do. Connecting is part of the latency."""

    def __init__(self, work: Work) -> None:
        address = urlsplit(work.url)
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        self._connect = kinds[address.scheme]
        self._host, self._port = address.hostname, address.port
        self._path = address.path.rstrip("/") + work.dialect.path
        self._headers = work.headers | {"Content-Type": "application/json", "Accept": "text/event-stream", "Connection": "close"}
        self._work = work

    def ask(self, job: Job, start: float, intended: float) -> Record:
        """One answer. `start`: time.perf_counter() at the start of the run; `intended`: seconds after it. Never raises for a bad answer."""
        answer = _Answer(start, time.perf_counter())
        error, detail = self._run(answer, request_body(self._work.dialect, self._work.model, job))
        end = time.perf_counter() - start if error else answer.last
        usage = answer.usage or _Usage()
        return Record(
            number=job.number,
            kind=job.kind,
            max_tokens=job.max_tokens,
            intended=intended,
            sent=answer.sent,
            pieces=answer.pieces,
            end=end,
            error=error,
            detail=detail[:300],
            finish=answer.finish,
            prompt_tokens=usage.prompt_tokens,
            answer_tokens=usage.completion_tokens,
            cached_tokens=usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None,
            text="".join(answer.text),
            logprobs=answer.logprobs,
        )

    def _run(self, answer: _Answer, body: bytes) -> tuple[str, str]:
        """Kind and detail of the error, empty when the answer is whole."""
        connection = self._connect(self._host, self._port, timeout=self._work.timeout)
        try:
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                return f"HTTP {response.status}", response.read(1000).decode(errors="replace")
            if "text/event-stream" not in response.getheader("content-type", ""):
                return "not SSE", f"content-type {response.getheader('content-type')!r}"
            return self._read(answer, response)
        except TimeoutError:
            return "timeout", f"nothing for {self._work.timeout:g} s"
        except (http.client.IncompleteRead, ConnectionResetError, BrokenPipeError) as error:
            return ("cut stream" if answer.last else "connection"), str(error) or type(error).__name__
        except (OSError, http.client.HTTPException) as error:
            return "connection", str(error) or type(error).__name__
        finally:
            connection.close()

    def _read(self, answer: _Answer, response: http.client.HTTPResponse) -> tuple[str, str]:
        for payload in _payloads(response):
            if payload == b"[DONE]":
                answer.done()
                return ("", "") if answer.finish else ("cut stream", "[DONE] without a finish_reason")
            try:
                event = _decode(payload)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                return "not SSE", f"{error}: {payload[:200].decode(errors='replace')}"
            if event.error is not None:
                return "error event", json.dumps(event.error)
            answer.add(event)
            if answer.last - answer.sent > self._work.timeout:
                return "timeout", f"not done after {self._work.timeout:g} s"
        return "cut stream", f"the connection ended without [DONE], after {len(answer.pieces)} pieces"


def _payloads(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The data of each event: servers of this API write each on one line."""
    rest = b""
    while data := response.read1(_READ):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


class _Answer:
    """What came so far."""

    def __init__(self, start: float, now: float) -> None:
        self._start = start
        self.sent = now - start
        self.last = 0.0
        self.pieces: list[float] = []
        self.text: list[str] = []
        self.finish: str | None = None
        self.usage: _Usage | None = None
        self.logprobs: int | None = None

    def done(self) -> None:
        self.last = time.perf_counter() - self._start

    def add(self, event: _Event) -> None:
        self.done()
        if event.usage is not None:
            self.usage = event.usage
        for choice in event.choices:
            text = choice.text or (choice.delta.content if choice.delta else None)
            if text:
                self.pieces.append(self.last)
                self.text.append(text)
            self.finish = choice.finish_reason or self.finish
            if choice.logprobs:
                scores = choice.logprobs.get("tokens") or choice.logprobs.get("content") or []  # of completions, of chat
                self.logprobs = (self.logprobs or 0) + len(scores)
