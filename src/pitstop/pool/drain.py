"""How fast the queue drains, and so when a refused request may hope for a place."""

from __future__ import annotations

import math

LONGEST = 60
"""Seconds: the largest Retry-After."""

_MEMORY = 30.0  # seconds of a busy queue after which an observation counts 1/e
_PRIOR_TOKENS = 512  # what is assumed before anything was seen: one place, with so many prompt tokens, in one second


class DrainRate:
    """Places and prompt tokens that leave the queue per second in which somebody waited: exponential averages.

    The time between two departures counts from the later one of the previous departure and the leaver's own arrival, so that
    an empty queue slows nothing. All times in monotonic seconds.
    """

    def __init__(self) -> None:
        self._seconds = self._places = self._tokens = 0.0
        self._last = -math.inf
        self._promised = -math.inf  # the place that frees then was promised to somebody

    def leave(self, now: float, arrival: float, tokens: int) -> None:
        """One place, and `tokens` prompt tokens with it, are free again."""
        passed = max(0.0, now - max(self._last, arrival))
        decay = math.exp(-passed / _MEMORY)
        self._seconds = self._seconds * decay + passed
        self._places = self._places * decay + 1
        self._tokens = self._tokens * decay + tokens
        self._last = now

    def rates(self, now: float, oldest: float) -> tuple[float, float]:
        """Places and tokens per second. oldest: when the oldest that waits arrived; a queue that stands still counts against the rate."""
        seconds = self._seconds + max(0.0, now - max(self._last, oldest)) + 1
        return (self._places + 1) / seconds, (self._tokens + _PRIOR_TOKENS) / seconds

    def retry_after(self, over: float, more: float, whole: float, now: float) -> int:
        """When a refused request may come back, in whole seconds, 1 to LONGEST.

        over, more, whole: seconds in which as much drains as there is too much, as the request itself needs, as the whole queue holds.
        Those refused together are told one place after the other, round the queue, so that they do not all come back at once.
        """
        self._promised = max(now + over, self._promised + more)
        if self._promised > now + max(over, whole):
            self._promised = now + over
        return min(LONGEST, max(1, math.ceil(self._promised - now)))
