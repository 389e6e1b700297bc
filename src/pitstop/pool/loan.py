"""What a worker gives of its KV cache to the machine, for a worker that is to take its place."""

from __future__ import annotations

import asyncio


class Loan:
    """size: bytes that were asked for last, all in all; a worker that takes the place of one that died is asked for them, too."""

    def __init__(self) -> None:
        self.size = 0
        self._told: asyncio.Future[int] | None = None

    def ask(self, size: int) -> asyncio.Future[int]:
        """Done, with how many it gives, when the worker has told."""
        self.size, self._told = size, asyncio.get_running_loop().create_future()
        return self._told

    def take(self, lent: int) -> None:
        """What a Step tells."""
        if lent >= 0 and self._told is not None and not self._told.done():
            self._told.set_result(lent)

    def fail(self, error: Exception) -> None:
        """The worker is gone."""
        if self._told is not None and not self._told.done():
            self._told.set_exception(error)
