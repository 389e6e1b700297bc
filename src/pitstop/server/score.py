"""POST /admin/score: the logits at a prompt's positions, bit by bit those that choose an answer's tokens.

The answer is binary and little endian: a header of 32 bytes, then `rows` rows of `vocabulary` float32 each. They are raw logits: their
softmax is the model's distribution of the next token.

    offset  size  what
    0       8     "PITSCORE"
    8       4     version of this format: 1
    12      4     vocabulary: floats in a row
    16      4     rows
    20      4     start: the first row's position in the prompt
    24      4     type of the numbers: 1 is float32
    28      4     what they are: 1 is raw logits

Content-Length counts all of it. An answer that fails after its header was sent ends before that.

The positions are computed in parts, each a request to the engine like any other, and each only when the reader has taken what came
before: a slow reader holds nothing in the engine. A part finds the KV of those before it in the prefix cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
import uuid
from collections.abc import AsyncIterator
from typing import NamedTuple

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pitstop.engine.protocol import score_rows
from pitstop.errors import ContextLengthExceeded, DeadlineExceeded, InvalidRequest, Overloaded, PitstopError, Unavailable
from pitstop.pool import Pool, Served
from pitstop.server.body import parse, read_body
from pitstop.server.completions import prompt_tokens
from pitstop.server.generation import check_generates, for_served
from pitstop.server.schema.admin import MAX_SCORED, ScoreRequest
from pitstop.server.service import Service, service_of
from pitstop.server.watch import unless_gone
from pitstop.types import Request, SamplingParams

log = logging.getLogger(__name__)

MAX_AT_ONCE = 4
"""Scores under way; each may hold one part of up to protocol.MAX_LOGITS bytes, and the socket another."""

HEADER = struct.Struct("<8s6I")
_VERSION, _FLOAT32, _RAW_LOGITS = 1, 1, 1


class Wish(NamedTuple):
    """A checked request. deadline: monotonic seconds. adapter: its id."""

    served: Served
    tokens: list[int]
    start: int
    deadline: float
    adapter: str = ""


class ScoreAnswer(Response):
    """Binary, as described above."""

    media_type = "application/octet-stream"


class Scoring:
    """The route, and how many of its answers are under way."""

    def __init__(self) -> None:
        self._under_way = 0

    async def score(self, http: HTTPRequest) -> Response:
        """The logits at a prompt's positions: a header of 32 bytes, then rows of float32, little endian (docs/verify.md)."""
        service, arrival = service_of(http), time.monotonic()
        pool = service.ready_pool()
        body = await read_body(http, service.config.max_body)
        with pool.enter():  # a place in the queue: tokenising is work too
            wish = await for_served(service, pool, lambda served: _prepare(service, served, body, arrival))
        return _Streamed(self, pool, wish)

    @contextlib.contextmanager
    def place(self):
        """One of the few places. Raises Overloaded."""
        if self._under_way >= MAX_AT_ONCE:
            raise Overloaded(f"{MAX_AT_ONCE} scores are under way, more at once are not answered; try again in 1 s.")
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


def _prepare(service: Service, served: Served, body: bytes, arrival: float) -> Wish:
    """Raises InvalidRequest or ModelNotFound."""
    check_generates(served)
    wish = parse(body, ScoreRequest)
    adapter = service.check_model(wish.model)
    longest, facts = service.config.request_timeout, served.facts
    if wish.timeout is not None and not wish.timeout <= longest:
        raise InvalidRequest(f"timeout must lie in (0, {longest:g}], got {wish.timeout:g}", "timeout")
    tokens = prompt_tokens(served.texts.tokenizer, wish.prompt, facts.vocab_size, "prompt")
    if len(tokens) > facts.context:
        raise ContextLengthExceeded(len(tokens), 0, facts.context, "prompt")
    if not 0 <= wish.start < len(tokens):
        raise InvalidRequest(f"start must lie in [0, {len(tokens) - 1}], the prompt's positions, got {wish.start}", "start")
    if (rows := len(tokens) - wish.start) > MAX_SCORED:
        raise InvalidRequest(f"start: {rows} positions are asked for, {MAX_SCORED} at most are answered; ask in turns", "start")
    return Wish(served, tokens, wish.start, arrival + (wish.timeout or longest), adapter)


class _Streamed(ScoreAnswer):
    """Computes and sends part by part. Before the first one a failure has its HTTP status."""

    def __init__(self, scoring: Scoring, pool: Pool, wish: Wish) -> None:
        super().__init__()
        self._scoring = scoring
        self._pool = pool
        self._wish = wish
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._scoring.place():
            try:
                async with asyncio.timeout(self._wish.deadline - time.monotonic()):
                    await unless_gone(receive, self._send(send))
            except TimeoutError:
                self._failed(DeadlineExceeded("The request's time is up; ask for fewer positions or raise `timeout`."))
            except (PitstopError, ClientDisconnect) as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Raise it while it can still be told; else the answer ends early, for which the web server cuts the connection."""
        if not self._started:
            raise error
        log.warning("a score is cut off: %s", str(error) or "its reader went away")

    async def _send(self, send: Send) -> None:
        vocabulary, rows = self._wish.served.facts.vocab_size, len(self._wish.tokens) - self._wish.start
        head = HEADER.pack(b"PITSCORE", _VERSION, vocabulary, rows, self._wish.start, _FLOAT32, _RAW_LOGITS)
        self.headers["content-length"] = str(len(head) + 4 * vocabulary * rows)
        async with contextlib.aclosing(_parts(self._pool, self._wish, score_rows(vocabulary))) as parts:
            async for part in parts:
                if not self._started:
                    self._started = True
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send({"type": "http.response.body", "body": head, "more_body": True})
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _parts(pool: Pool, wish: Wish, rows: int) -> AsyncIterator[bytes]:
    """The logits of so many rows after the other, computed when asked for. The queue's bound is for the first: no later one is refused."""
    score_id = f"score-{uuid.uuid4().hex}"
    with pool.enter() as place:
        for start in range(wish.start, len(wish.tokens), rows):
            request = Request(
                id=f"{score_id}-{start}",
                prompt=wish.tokens[: start + rows],
                params=SamplingParams(max_tokens=0),
                arrival=time.monotonic(),
                deadline=wish.deadline,
                score_from=start,
                adapter=wish.adapter,
            )
            if not pool.serves(wish.served) or pool.facts.numerics != wish.served.facts.numerics:
                raise Unavailable("The server is being upgraded, and all logits must come from one model; ask again.")
            with place.submit([request]) as stream:
                async for _, delta in stream:
                    yield delta.logits
