"""What a soak is to do: written into its state file, so that an interrupted one goes on as it was begun."""

from __future__ import annotations

import msgspec

from pitstop.errors import ConfigError

ROUNDS = 48
LONGEST_ROUND, SHORTEST_ROUND = 60.0, 0.25  # seconds
WARM_UP = 0.2
"""The share of the time, from the start, whose samples are not judged: allocators and caches fill."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`clients` send one request after another; with a `rate` (requests a second, Poisson) as many are in flight as it takes.

    `pid` is the server's main process. Raises ConfigError for values that are no plan.
    """

    seconds: float = 120.0
    rate: float | None = None
    clients: int = 8
    seed: int = 0
    pid: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.seconds <= 366 * 86400:
            raise ConfigError(f"a soak takes a second to a year, not {self.seconds:g} seconds")
        if self.rate is not None and not 0.01 <= self.rate <= 10_000:
            raise ConfigError(f"--rate must lie between 0.01 and 10,000 requests a second, got {self.rate:g}")
        if not 1 <= self.clients <= 1000:
            raise ConfigError(f"--clients must lie between 1 and 1,000, got {self.clients}")

    @property
    def round_seconds(self) -> float:
        """Load lasts so long between two idle moments."""
        return min(LONGEST_ROUND, max(SHORTEST_ROUND, self.seconds / ROUNDS))
