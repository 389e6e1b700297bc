"""The book of what is in flight: one entry per choice, exact counts by stage, totals that add up. Used on the event loop only."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from pitstop.pool.drain import DrainRate
from pitstop.pool.recheck import Recheck
from pitstop.pool.stream import Delta, Stream
from pitstop.pool.texts import Texts
from pitstop.text.stream import TextStream
from pitstop.types import FinishReason, Request

if TYPE_CHECKING:
    from pitstop.pool.member import Member

Stage = Literal["queued", "running"]

RejectReason = Literal["requests", "tokens"]
"""Which bound of the queue was reached."""


def prompt_tokens(request: Request) -> int:
    """Prompt tokens that this choice brings into the queue: those of one prompt are computed once."""
    return len(request.prompt) if request.choice == 0 else 0


@dataclass(eq=False, slots=True)
class Entry:
    """One choice in flight. With the request (prompt ids, seed) and `emitted` any worker can continue it.

    texts: the words of the model that it was prepared for. text: what has become of its tokens so far; a reader thread's while a worker
    runs the choice. member: whose worker that is, None while no worker is there. numerics: by which arithmetic the tokens so far came.
    told: what its client has got. recheck: while a beginning that came from a worker which computed wrongly is computed again.
    """

    request: Request
    stream: Stream
    texts: Texts | None = None
    text: TextStream | None = field(init=False, default=None)
    member: Member | None = None
    stage: Stage = "queued"
    emitted: list[int] = field(default_factory=list)
    last_token_at: float | None = None  # monotonic; None: no token yet
    timer: asyncio.TimerHandle | None = None
    numerics: str = ""
    cached_tokens: int | None = None  # as the first worker said
    deaths: int = 0  # of workers that were running it
    crashes: int = 0  # those deaths that came from within
    computed: bool = False  # its prompt, by the worker that it has now
    paused_at: float | None = None  # monotonic; when its worker died, until the next token comes
    told: list[Delta] = field(default_factory=list)
    recheck: Recheck | None = None

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        params = self.request.params
        if self.texts is not None:
            self.text = TextStream(self.texts.tokenizer, params.stop, params.min_tokens, self.request.shown)

    def begin_again(self) -> None:
        """Nobody knows whether what has come so far is right."""
        if self.told:
            self.emitted, self.recheck = [], Recheck(self.told)
            self._begin()

    def add(self, tokens: list[int]) -> None:
        """Tokens that its worker has computed."""
        self.computed = True
        self.emitted += tokens

    @property
    def begun(self) -> bool:
        """Whether its client has got some of the answer."""
        return bool(self.emitted or self.told)

    @property
    def outstanding(self) -> int:
        """Tokens that are still to be computed for it at most."""
        prompt = 0 if self.computed else len(self.request.prompt) + len(self.emitted)
        return prompt + self.request.params.max_tokens - len(self.emitted)

    def continuation(self) -> Request:
        """The request as a worker gets it: with what is answered already."""
        return msgspec.structs.replace(self.request, emitted=list(self.emitted)) if self.emitted else self.request


class Journal:
    """Entries by id, and counts. At any time: accepted = finished, all reasons together, + in flight.

    The door holds places for requests that are being read and tokenised (stage "encoding"); they are not accepted yet.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.encoding = 0
        self.accepted = 0
        self.rejected: Counter[RejectReason] = Counter()
        self.resumed = 0  # times that a choice went on in another worker
        self.finished: Counter[FinishReason] = Counter()
        self.waiting_tokens = 0  # of prompts whose answer has no token yet
        self._stages: Counter[Stage] = Counter()
        self._without_token = 0
        self._held_since: dict[object, float] = {}
        self._rate = DrainRate()

    @property
    def queued(self) -> int:
        return self._stages["queued"]

    @property
    def running(self) -> int:
        return self._stages["running"]

    @property
    def waiting(self) -> int:
        """Choices that have no token yet, in whatever stage: what `PoolConfig.max_waiting` bounds."""
        return self.encoding + self._without_token

    def oldest_waiting(self) -> float | None:
        """When the request that waits longest came, in monotonic seconds; None when nobody waits."""
        arrivals = [entry.request.arrival for entry in self.entries.values() if entry.last_token_at is None]
        return min([*arrivals, *self._held_since.values()], default=None)

    def hold(self, place: object, choices: int) -> None:
        """`place` holds so many choices more at the door."""
        self.encoding += choices
        self._held_since.setdefault(place, time.monotonic())

    def give_back(self, place: object, choices: int) -> None:
        """`place` holds nothing any more, after `choices`."""
        self.encoding -= choices
        self._held_since.pop(place, None)

    def drain_rates(self) -> tuple[float, float]:
        """Choices and prompt tokens that leave the queue per second, as measured lately."""
        now = time.monotonic()
        oldest = self.oldest_waiting()
        return self._rate.rates(now, now if oldest is None else oldest)

    def reject(self, reason: RejectReason, over: float, more: float, whole: float) -> int:
        """Count a refusal; when to come back, as DrainRate.retry_after has it."""
        self.rejected[reason] += 1
        return self._rate.retry_after(over, more, whole, time.monotonic())

    def add(self, entry: Entry) -> None:
        self.entries[entry.request.id] = entry
        self.accepted += 1
        self._without_token += 1
        self.waiting_tokens += prompt_tokens(entry.request)
        self._stages[entry.stage] += 1

    def move(self, entry: Entry, stage: Stage) -> None:
        self._stages[entry.stage] -= 1
        self._stages[stage] += 1
        entry.stage = stage

    def emit(self, entry: Entry, tokens: list[int], now: float) -> None:
        """Book tokens that arrived at `now` (monotonic seconds)."""
        if not tokens:
            return
        if entry.last_token_at is None:
            self._leave_queue(entry, now)
        entry.last_token_at = now
        entry.add(tokens)

    def checked(self, entry: Entry, delta: Delta) -> Delta | None:
        """What is new in a delta of an answer that is computed again; None when nothing is: its tokens are booked then.

        Raises WorkerDied when it contradicts what the client has got.
        """
        new = entry.recheck.take(delta)
        if entry.recheck.done:
            entry.recheck = None
        if new.tokens or new.text or new.finish:
            return new
        entry.add(delta.tokens)
        return None

    def end(self, entry: Entry, reason: FinishReason, now: float) -> None:
        """Take an entry out. A second end of the same entry is a bug and raises KeyError."""
        del self.entries[entry.request.id]
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.last_token_at is None:
            self._leave_queue(entry, now)
        self._stages[entry.stage] -= 1
        self.finished[reason] += 1

    def _leave_queue(self, entry: Entry, now: float) -> None:
        tokens = prompt_tokens(entry.request)
        self._without_token -= 1
        self.waiting_tokens -= tokens
        self._rate.leave(now, entry.request.arrival, tokens)

    def check(self) -> None:
        """Recount everything from the entries; AssertionError when a count is off."""
        stages = Counter(entry.stage for entry in self.entries.values())
        assert all(stages[stage] == self._stages[stage] for stage in ("queued", "running")), (stages, self._stages)
        waiting = [entry for entry in self.entries.values() if entry.last_token_at is None]
        assert self._without_token == len(waiting)
        assert self.waiting_tokens == sum(prompt_tokens(entry.request) for entry in waiting)
        assert self.accepted == sum(self.finished.values()) + len(self.entries)
        assert self.encoding >= len(self._held_since)
