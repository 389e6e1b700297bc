"""Deltas to HTTP: server-sent events, or one JSON object which is the fold of the same chunks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable

import msgspec
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pitstop.errors import PitstopError
from pitstop.pool import Delta, Stream
from pitstop.server.errors import describe
from pitstop.server.prepared import Prepared, Shape
from pitstop.server.record import record
from pitstop.server.schema.answers import Chunk
from pitstop.types import Request

log = logging.getLogger(__name__)

CLIENT_GONE = 499
"""The customary status, in the metrics only, of an answer that nobody waits for any more."""

_encode = msgspec.json.Encoder().encode


async def respond(http: HTTPRequest, prepared: Prepared, stream: Stream) -> Response:
    """The answer of a queued request. A client that goes away cancels it at any time."""
    watch = asyncio.create_task(_cancel_when_gone(http.receive, stream))
    batches = _batches(prepared, stream)
    handed_over = False
    try:
        if prepared.stream:
            first = await anext(batches, None)  # an error before the first token still gets its HTTP status
            if first is None:
                return Response(status_code=CLIENT_GONE)
            handed_over = True
            return _EventStream(prepared.shape, first, batches, stream, watch)
        whole: Chunk = {}
        async for batch in batches:
            for chunk in batch:
                prepared.shape.fold(whole, chunk)
        if stream.cancelled:
            return Response(status_code=CLIENT_GONE)
        return Response(_encode(whole), media_type="application/json")
    finally:
        if not handed_over:
            stream.cancel()
            watch.cancel()


async def _cancel_when_gone(receive: Receive, stream: Stream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.cancel()


async def _batches(prepared: Prepared, stream: Stream) -> AsyncIterator[list[Chunk]]:
    """The chunks of each delta; at last the usage where it is wanted."""
    tally, about = Tally(prepared.requests), record()
    try:
        async for index, delta in stream:
            tally.add(index, delta)
            if delta.tokens:
                about.last_token = time.monotonic()
                about.first_token = about.first_token or about.last_token
            if delta.finish is not None:
                about.finish.append(delta.finish)
            if chunks := prepared.shape.chunks(index, delta):
                yield chunks
    finally:
        about.admitted = stream.admitted
        about.completion_tokens, about.cached_tokens = tally.completion, tally.cached()
        if stream.cancelled:
            about.finish.append("cancelled")
    if not stream.cancelled and (prepared.include_usage or not prepared.stream):
        yield prepared.shape.end(tally.usage())


class Tally:
    """Counts tokens for `usage`: a prompt once, whatever the number of its answers."""

    def __init__(self, requests: list[Request]) -> None:
        self._firsts = [index for index, request in enumerate(requests) if request.choice == 0]
        self._prompt = sum(len(requests[index].prompt) for index in self._firsts)
        self.completion = 0
        self._cached: dict[int, int] = {}

    def add(self, index: int, delta: Delta) -> None:
        self.completion += len(delta.tokens)
        self._cached[index] = delta.cached_tokens

    def usage(self) -> dict:
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self.completion,
            "total_tokens": self._prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached()},
        }

    def cached(self) -> int:
        """Prompt tokens that were there already."""
        return sum(self._cached.get(index, 0) for index in self._firsts)


class _EventStream(Response):
    """Server-sent events. After the head is out, a failure is an error event, and then the end without the shape's `last`."""

    def __init__(
        self, shape: Shape, first: list[Chunk], rest: AsyncIterator[list[Chunk]], stream: Stream, watch: asyncio.Task[None]
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._shape = shape
        self._first = first
        self._rest = rest
        self._stream = stream
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await write(self._events(self._first))
            try:
                async for batch in self._rest:
                    await write(self._events(batch))
                last = b"" if self._stream.cancelled else self._shape.last
            except Exception as error:
                if not isinstance(error, PitstopError):
                    log.exception("a stream failed")
                status, body, _ = describe(error)
                record().error = body["error"]["code"]
                last = self._events([self._shape.failure(status, body)])
            await write(last, more=False)
        finally:
            self._stream.cancel()
            self._watch.cancel()

    def _events(self, chunks: Iterable[Chunk]) -> bytes:
        if self._shape.typed:
            return b"".join(b"event: %b\ndata: %b\n\n" % (chunk["type"].encode(), _encode(chunk)) for chunk in chunks)
        return b"".join(b"data: %b\n\n" % _encode(chunk) for chunk in chunks)
