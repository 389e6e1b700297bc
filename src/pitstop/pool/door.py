"""Places in the bounded queue, held from the door on, so that reading and tokenising count as waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Self

from pitstop.config import PoolConfig
from pitstop.errors import Overloaded
from pitstop.pool.journal import Journal, RejectReason, prompt_tokens
from pitstop.pool.stream import Stream
from pitstop.types import Request


class Place:
    """Places for the choices of one user request. A context manager: leaving it gives back what was not submitted."""

    def __init__(
        self, journal: Journal, bounds: PoolConfig, check_available: Callable[[], None], submit: Callable[[list[Request]], Stream]
    ) -> None:
        self._journal = journal
        self._bounds = bounds
        self._check_available = check_available
        self._submit = submit
        self._held = 0

    def widen(self, choices: int) -> Self:
        """Hold `choices` places in all. Raises Unavailable or Overloaded, and then holds what it held."""
        self._check_available()
        self._hold(choices)
        return self

    def _hold(self, choices: int) -> None:
        journal, limit, more = self._journal, self._bounds.max_waiting, choices - self._held
        if (over := journal.waiting + more - limit) > 0:
            rate, _ = journal.drain_rates()
            self._refuse("requests", f"{journal.waiting} of {limit} places in the queue are taken", over / rate, more / rate, limit / rate)
        journal.hold(self, more)
        self._held = choices

    def fit(self, requests: list[Request]) -> Self:
        """Hold as many places as these choices need, now that their prompts are known. Raises Overloaded."""
        self._hold(len(requests))
        self._check_tokens(sum(map(prompt_tokens, requests)))
        return self

    def submit(self, requests: list[Request]) -> Stream:
        """Queue the choices. Raises Unavailable when the server stops by now."""
        self._release()
        return self._submit(requests)

    def _check_tokens(self, more: int) -> None:
        """A prompt that is longer than all that may wait is taken when no other waits."""
        journal, limit = self._journal, self._bounds.max_waiting_tokens
        waiting = journal.waiting_tokens
        if waiting and waiting + more > limit:
            _, rate = journal.drain_rates()
            over = min(waiting, waiting + more - limit)
            taken = f"{waiting} of {limit} prompt tokens that may wait are there, this request has {more}"
            self._refuse("tokens", taken, over / rate, more / rate, limit / rate)

    def _refuse(self, reason: RejectReason, taken: str, over: float, more: float, whole: float) -> NoReturn:
        seconds = self._journal.reject(reason, over, more, whole)
        raise Overloaded(f"{taken}; try again in {seconds} s.", seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._release()

    def _release(self) -> None:
        self._journal.give_back(self, self._held)
        self._held = 0
