"""What a request's answer looks like to the front: an asynchronous iterator of deltas."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pitstop.errors import DeadlineExceeded
from pitstop.types import FinishReason

MAX_BACKLOG = 4096
"""Deltas that may wait for their reader; one more, and the request is cancelled."""


class TokenScore(NamedTuple):
    """A token as text and bytes, its natural-log probability, and the likeliest tokens of its place, likeliest first.

    Where the bytes are not valid UTF-8 by themselves, `text` is "bytes:\\xf0\\x9f", OpenAI's way of writing them.
    """

    text: str
    bytes: bytes
    logprob: float
    top: tuple[TokenScore, ...] = ()  # these have none themselves


class Delta(NamedTuple):
    """What one step brought for one choice.

    tokens: the new token ids, an end token included; text: what is settled of their text (may lag behind, never half a character);
    scores: of those tokens that are part of the text; prompt_scores: of prompt tokens 1, 2, …, on the first delta; logits: for
    Request.score_from, [rows, vocab] fp32, little endian, on the last; stop: the stop string that ended it; vector: for Request.embed,
    [width] fp32, little endian, on the last; message, refused: why it ended with an error, and whether by its own fault.
    """

    id: str
    tokens: list[int]
    text: str = ""
    scores: list[TokenScore] | None = None
    finish: FinishReason | None = None
    cached_tokens: int = 0
    prompt_scores: list[TokenScore] | None = None
    message: str = ""
    logits: bytes = b""
    stop: str | None = None
    vector: bytes = b""
    refused: bool = False


class Stream:
    """The deltas of one user request, all choices together, in the order they came: `async for choice, delta in stream`.

    Iteration ends after every choice has finished or `cancel` was called; it raises `WorkerDied`, `DeadlineExceeded` or another
    PitstopError as soon as one choice fails, the others are then cancelled. Use it as a context manager: leaving cancels what still runs.
    """

    def __init__(self, ids: list[str], cancel: Callable[[Stream], None]) -> None:
        self.ids = ids
        self._choices = {id: index for index, id in enumerate(ids)}
        self._open = set(ids)
        self._ready: deque[tuple[int, Delta]] = deque()
        self._error: Exception | None = None
        self._wake: asyncio.Future[None] | None = None
        self._cancel = cancel
        self.cancelled = False  # by `cancel`, before it had ended
        self.admitted: float | None = None  # when an engine began with the first choice, in monotonic seconds

    @property
    def open(self) -> frozenset[str]:
        """Ids of the choices that have not ended."""
        return frozenset(self._open)

    def cancel(self) -> None:
        """End every choice now and free what they hold, in the worker too. Does nothing for ended ones."""
        if self._open:
            self.cancelled = True
            self._cancel(self)

    def push(self, delta: Delta) -> None:
        """Called by the pool on the event loop."""
        if delta.finish is not None:
            self._open.discard(delta.id)
        self._ready.append((self._choices[delta.id], delta))
        if len(self._ready) > MAX_BACKLOG and self._open:
            self.cancel()
            self._error = DeadlineExceeded(f"The answer was read too slowly: {MAX_BACKLOG} pieces of it waited. Read it as it comes.")
        self._notify()

    def end(self, error: Exception | None) -> None:
        """Called by the pool: nothing more will come; what came is still delivered, then `error` is raised."""
        self._open.clear()
        self._error = error
        self._notify()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        while not self._ready:
            if not self._open:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self._ready.popleft()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
