"""Places in the bounded queue, held from the door on, so that reading and tokenising count as waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from pitstop.errors import Overloaded
from pitstop.pool.journal import Journal
from pitstop.pool.stream import Stream
from pitstop.types import Request


class Place:
    """Places for the choices of one user request. A context manager: leaving it gives back what was not submitted."""

    def __init__(
        self, journal: Journal, limit: int, check_available: Callable[[], None], submit: Callable[[list[Request]], Stream]
    ) -> None:
        """limit: choices that may wait, all requests together."""
        self._journal = journal
        self._limit = limit
        self._check_available = check_available
        self._submit = submit
        self._held = 0

    def widen(self, choices: int) -> Self:
        """Hold `choices` places in all. Raises Unavailable or Overloaded, and then holds what it held."""
        self._check_available()
        journal, more = self._journal, choices - self._held
        if journal.waiting + more > self._limit:
            journal.rejected += 1
            seconds = journal.retry_after(time.monotonic())
            raise Overloaded(f"{journal.waiting} of {self._limit} places in the queue are taken; try again in {seconds} s.", seconds)
        journal.encoding += more
        self._held = choices
        return self

    def submit(self, requests: list[Request]) -> Stream:
        """Queue the choices. Raises Unavailable when the worker is gone by now."""
        self._release()
        return self._submit(requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._release()

    def _release(self) -> None:
        self._journal.encoding -= self._held
        self._held = 0
