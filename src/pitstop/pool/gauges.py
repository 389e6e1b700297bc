"""What /metrics shows of a pool, and the sums behind it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from pitstop.engine.protocol import Stats
from pitstop.pool.journal import Journal, RejectReason
from pitstop.types import FinishReason

if TYPE_CHECKING:
    from pitstop.pool.member import Member

State = Literal["loading", "ready", "restarting", "draining", "stopped"]

_COUNTERS = ("steps", "preemptions", "prompt_tokens", "cached_tokens", "generated_tokens", "guessed_tokens", "accepted_tokens")


class Observer(Protocol):
    """What wants to know about latencies, in seconds. Called on the event loop."""

    def first_token(self, seconds: float) -> None: ...

    def next_token(self, seconds: float) -> None: ...

    def resumed(self, seconds: float) -> None:
        """An answer goes on; it stood still for so long because its worker had died."""

    def finished(self, reason: FinishReason, seconds: float) -> None: ...


class Gauges(NamedTuple):
    """An exact snapshot: accepted = finished, all reasons together, + queued + running. Counts are choices, not user requests."""

    state: State
    encoding: int
    queued: int
    running: int
    accepted: int
    finished: dict[FinishReason, int]
    rejected: dict[RejectReason, int]  # requests refused, by the bound of the queue that was reached
    waiting_tokens: int  # prompt tokens of those that have no answer token yet
    oldest_waiting: float  # seconds that the longest waiting request has waited, being tokenised included; 0: nobody waits
    restarts: int
    deaths_in_a_row: int  # of the worker that has been worst lately, without a healthy minute in between
    resumed: int  # times that a request went on in another worker
    stats: Stats  # gauges of the living workers together; counters of all incarnations together


def read(state: State, journal: Journal, members: Sequence[Member], past: Stats, past_restarts: int) -> Gauges:
    """As of now. past, past_restarts: of members that are gone."""
    oldest = journal.oldest_waiting()
    return Gauges(
        state,
        journal.encoding,
        journal.queued,
        journal.running,
        journal.accepted,
        dict(journal.finished),
        dict(journal.rejected),
        journal.waiting_tokens,
        time.monotonic() - oldest if oldest is not None else 0.0,
        past_restarts + sum(member.restarts for member in members),
        max((member.deaths for member in members), default=0),
        journal.resumed,
        add([past, *(member.stats for member in members)]),
    )


def add(parts: Iterable[Stats]) -> Stats:
    """Field by field."""
    parts = list(parts)
    return Stats(*(sum(getattr(part, name) for part in parts) for name in Stats.__struct_fields__))


def counters(stats: Stats) -> Stats:
    """What remains of a worker that has ended: its counters."""
    return Stats(**{name: getattr(stats, name) for name in _COUNTERS})
