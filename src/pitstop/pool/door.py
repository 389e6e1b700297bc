"""Places in the bounded queue, held from the door on, so that reading and tokenising count as waiting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pitstop.errors import Overloaded
from pitstop.pool.stream import Stream
from pitstop.types import Request

if TYPE_CHECKING:
    from pitstop.pool.pool import Pool


class Place:
    """Places for the choices of one user request. A context manager: leaving it gives back what was not submitted."""

    def __init__(self, pool: Pool, choices: int) -> None:
        self._pool = pool
        self._held = 0
        self.widen(choices)

    def widen(self, choices: int) -> None:
        """Hold `choices` places in all. Raises Unavailable or Overloaded, and then holds what it held."""
        pool, journal = self._pool, self._pool.journal
        pool.check_available()
        more = choices - self._held
        if journal.waiting + more > pool.config.max_waiting:
            journal.rejected += 1
            seconds = journal.retry_after(time.monotonic())
            places = pool.config.max_waiting
            raise Overloaded(f"{journal.waiting} of {places} places in the queue are taken; try again in {seconds} s.", seconds)
        journal.encoding += more
        self._held = choices

    def submit(self, requests: list[Request]) -> Stream:
        """Queue the choices. Raises Unavailable when the worker is gone by now."""
        self._release()
        return self._pool.submit(requests)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *exception: object) -> None:
        self._release()

    def _release(self) -> None:
        self._pool.journal.encoding -= self._held
        self._held = 0
