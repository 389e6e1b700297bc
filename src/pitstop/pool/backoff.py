"""How long to wait before a worker is started again."""

from __future__ import annotations

LONGEST = 30.0
HEALTHY_AFTER = 60.0  # a worker that served so long (seconds) was no crash loop


class Backoff:
    """Doubles with each death in a row, up to LONGEST; begins anew after a worker that was healthy."""

    def __init__(self, first: float) -> None:
        """first: seconds before the first restart."""
        self._first = first
        self.deaths = 0
        """In a row, the latest one included."""

    def died(self, served: float) -> float:
        """Seconds to wait after a death. served: how long the worker was ready, 0 for one that never was."""
        self.deaths = 1 if served >= HEALTHY_AFTER else self.deaths + 1
        return min(LONGEST, self._first * 2.0 ** min(self.deaths - 1, 60))
