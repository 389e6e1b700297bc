"""What the server sees: requests go in, streams come out, whichever member runs them. All methods belong to the event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence

from pitstop.config import EngineConfig, PoolConfig
from pitstop.engine.protocol import Ready, Stats, Step
from pitstop.errors import DeadlineExceeded, PitstopError, Quarantined, Unavailable, WorkerDied
from pitstop.pool import gauges
from pitstop.pool.door import Place
from pitstop.pool.gauges import Gauges, Observer, State
from pitstop.pool.journal import Entry, Journal
from pitstop.pool.member import Member
from pitstop.pool.stream import Delta, Stream
from pitstop.pool.watchdog import TICK
from pitstop.pool.worker import WORKER_COMMAND, Process
from pitstop.text.stream import TextStream
from pitstop.text.tokenizer import Tokenizer
from pitstop.types import FinishReason, Request

log = logging.getLogger(__name__)

DEADLINE_GRACE = 2.0
"""Seconds that the engine gets to end a request whose time is up, before the front does it."""

MAX_ATTEMPTS = 3
"""Workers that may die while they run a request, whatever killed them."""

MAX_CRASHES = 2
"""Those of them that may die by their own fault: then the request is the suspect."""


class Pool:
    """Members, the journal of what is in flight, and the choice of who runs it.

    `first` is a process for the first worker that was spawned ahead, so that it imports while the front does.
    """

    def __init__(
        self,
        config: PoolConfig,
        engine: EngineConfig,
        tokenizer: Tokenizer,
        observer: Observer | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        first: Process | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.journal = Journal()
        self.members: list[Member] = []
        """Those that are not dead, oldest first."""
        self._engine = engine
        self._observer = observer
        self._command = command
        self._first = first
        self._numbers = itertools.count()
        self._phase: State = "loading"  # "ready" from the end of the start on, whatever becomes of the workers
        self._facts: Ready | None = None
        self._paused: dict[str, Entry] = {}  # in flight, without a worker
        self._idle = asyncio.Event()  # nothing is in flight
        self._watchdog: asyncio.Task[None] | None = None
        self._past = Stats()
        self._past_restarts = 0

    @property
    def state(self) -> State:
        """ready: new requests are taken. restarting: no worker is there; what was accepted waits for one."""
        if self._phase == "ready" and not self._open_members():
            return "restarting"
        return self._phase

    @property
    def facts(self) -> Ready | None:
        """What the worker that gets new requests reported, or the last one that did; None before the first was ready."""
        members = self._open_members()
        if members:
            self._facts = members[0].facts
        return self._facts

    async def start(self) -> Ready:
        """Start the first worker and wait until it is ready.

        Raises ConfigError with the worker's own message when it cannot start, or when it takes longer than `start_timeout`.
        """
        try:
            member = self.add_member(self._engine, self._first)
            await member.ready()
            self.promote(member)
            self._watchdog = asyncio.create_task(self._watch(), name="pool-watchdog")
        except BaseException:
            self._phase = "stopped"
            await self.close()
            raise
        return self.facts

    # Members

    def add_member(self, engine: EngineConfig, first: Process | None = None) -> Member:
        """A new member that starts now and gets no requests before it is promoted. One that dies before that is not replaced.

        Await its `ready`, which raises ConfigError when it cannot start; `retire` it when it is not wanted.
        """
        member = Member(next(self._numbers), engine, self.config, self, self._command, first)
        self.members.append(member)
        return member

    def promote(self, member: Member) -> None:
        """Send new requests to a ready member, too. Raises Unavailable when it is not ready."""
        if member.life != "ready":
            raise Unavailable(f"worker {member.number} is {member.life}")
        member.routed = True
        if self._phase == "loading":
            self._phase = "ready"

    def retire(self, member: Member) -> None:
        """Send no more requests to a member; it ends when those it has have ended. Its `gone` event is set then."""
        member.retire()

    async def probe(self, prompt: list[int], max_tokens: int, timeout: float, member: Member | None = None) -> list[int]:
        """`Member.probe` of `member`, or of the one with the oldest step among those that take requests."""
        if member is None:
            members = self._open_members()
            if not members:
                raise Unavailable(_WHY.get(self.state, "no worker is ready"))
            now = time.monotonic()
            member = max(members, key=lambda candidate: candidate.last_step_age(now) or 0.0)
        return await member.probe(prompt, max_tokens, timeout)

    def last_step_age(self) -> float | None:
        """Seconds since the last step of a member that has work (since it has work, if that is later): the oldest; None without work."""
        now = time.monotonic()
        return max((age for member in self.members if (age := member.last_step_age(now)) is not None), default=None)

    # Requests

    def enter(self, choices: int = 1) -> Place:
        """Take places in the queue for a request that is about to be read and tokenised.

        Raises Unavailable when no worker can take it, Overloaded when the queue is full.
        """
        return Place(self.journal, self.config, self.check_available, self._submit).widen(choices)

    def check_available(self) -> None:
        """Raise Unavailable unless new requests are taken."""
        if self.state != "ready":
            raise Unavailable(_WHY[self.state])

    def gauges(self) -> Gauges:
        journal = self.journal
        oldest = journal.oldest_waiting()
        return Gauges(
            self.state,
            journal.encoding,
            journal.queued,
            journal.running,
            journal.accepted,
            dict(journal.finished),
            dict(journal.rejected),
            journal.waiting_tokens,
            time.monotonic() - oldest if oldest is not None else 0.0,
            self._past_restarts + sum(member.restarts for member in self.members),
            journal.resumed,
            gauges.add([self._past, *(member.stats for member in self.members)]),
        )

    def _submit(self, requests: list[Request]) -> Stream:
        if self._phase != "ready":  # without a worker it waits: it had been let in
            raise Unavailable(_WHY[self._phase])
        stream = Stream([request.id for request in requests], self._cancel)
        for request in requests:
            entry = Entry(request, stream, TextStream(self.tokenizer, request.params.stop, request.params.min_tokens))
            self.journal.add(entry)
            self._run(entry)
        return stream

    def _run(self, entry: Entry) -> None:
        """Hand a choice to a member, or let it wait for one."""
        member = self._choose(entry)
        if member is None:
            self._paused[entry.request.id] = entry
            self._arm(entry)
            return
        self._paused.pop(entry.request.id, None)
        if entry.paused_at is not None:
            self.journal.resumed += 1
        self._arm(entry)
        member.submit(entry)

    def _choose(self, entry: Entry) -> Member | None:
        """Who runs a choice; None: nobody yet. An answer that has begun goes on by the same arithmetic, as long as anybody has it."""
        members = self._open_members()
        if entry.emitted:
            equal = [
                member for member in self.members if member.numerics == entry.numerics and (member.routed or member.life == "retiring")
            ]
            if equal:
                members = sorted((member for member in equal if member.up), key=lambda member: not member.routed)
        return members[0] if members else None

    def _open_members(self) -> list[Member]:
        """Those that new requests may go to."""
        return [member for member in self.members if member.routed and member.up]

    def _arm(self, entry: Entry, grace: float = 0.0) -> None:
        """Set the clock that ends a choice `grace` seconds after its deadline."""
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.request.deadline is not None:
            left = entry.request.deadline + grace - time.monotonic()
            entry.timer = asyncio.get_running_loop().call_later(left, self._expire, entry)

    # Ends of the whole

    async def drain(self) -> None:
        """Take no new requests and wait until those in flight have ended, `stop_timeout` at most; what is left then ends with an error."""
        if self._phase != "stopped":
            self._phase = "draining"
        self._idle.clear()
        if self.journal.entries:
            try:
                await asyncio.wait_for(self._idle.wait(), self.config.stop_timeout)
            except TimeoutError:
                log.warning("%d requests did not finish within %g s and are ended", len(self.journal.entries), self.config.stop_timeout)
        self._end_all("cancelled", Unavailable(_CUT_OFF))

    async def close(self) -> None:
        """End what is in flight with an error, stop the workers and wait until they are gone."""
        self._phase = "stopped"
        self._end_all("cancelled", Unavailable(_CUT_OFF))
        if self._watchdog is not None:
            self._watchdog.cancel()
        await asyncio.gather(*(member.close() for member in list(self.members)))

    def worker_pids(self) -> list[int]:
        """The process of each member's latest worker, dead or alive."""
        return [pid for member in self.members if (pid := member.pid) is not None]

    def kill(self) -> None:
        """SIGKILL the workers, for a stop in a hurry: nothing is resumed."""
        self._phase = "stopped"
        for member in self.members:
            member.kill()

    async def _watch(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            for member in list(self.members):
                member.watch(now - before)
            before = now

    # What members tell

    def on_ready(self, member: Member) -> None:
        for entry in list(self.journal.entries.values()):  # in the order of acceptance
            if entry.request.id in self._paused:
                self._run(entry)

    def on_death(self, member: Member, entries: list[Entry]) -> None:
        """What the worker ran goes on elsewhere or waits, except what seems to be the cause or has had its attempts."""
        now = time.monotonic()
        for entry in entries:
            if entry.stage == "running":
                entry.deaths += 1
                entry.crashes += member.crashed
                self.journal.move(entry, "queued")
            if entry.paused_at is None:
                entry.paused_at = now
        for entry in entries:
            if entry.request.id not in self.journal.entries:
                continue  # it went with another choice of its request
            if error := self._verdict(entry):
                log.error("request %s: %s", entry.request.id, error)
                self._fail(entry.stream, "error", error)
            else:
                self._run(entry)

    def _verdict(self, entry: Entry) -> PitstopError | None:
        """Why a choice whose worker died is not tried again, if so. Those that only waited there are innocent."""
        if entry.crashes >= MAX_CRASHES:
            return Quarantined(f"Workers crashed {entry.crashes} times while they ran {entry.request.id}; it is not tried again.")
        if entry.deaths >= MAX_ATTEMPTS:
            return WorkerDied(f"{entry.deaths} workers that ran {entry.request.id} were killed, one after the other; try again.")
        return WorkerDied(_CUT_OFF) if self._phase == "stopped" else None

    def on_gone(self, member: Member) -> None:
        self.members.remove(member)
        self._past = gauges.add([self._past, member.stats])
        self._past_restarts += member.restarts

    def needs(self, member: Member) -> bool:
        if self._phase == "stopped":
            return False
        if member.life == "retiring":  # those that have begun there may need its arithmetic
            return any(entry.emitted and entry.numerics == member.numerics for entry in self._paused.values())
        return member.routed and (self._phase != "draining" or bool(self.journal.entries))

    def on_step(self, member: Member, step: Step, deltas: list[Delta]) -> None:
        now = time.monotonic()
        for request_id in step.admitted:
            if request_id in member.entries:
                self.journal.move(member.entries[request_id], "running")
        for request_id in step.preempted:
            if request_id in member.entries:
                self.journal.move(member.entries[request_id], "queued")
        for delta in deltas:
            if delta.id in member.entries:
                self._take(member.entries[delta.id], delta, now)

    def _take(self, entry: Entry, delta: Delta, now: float) -> None:
        if delta.tokens and self._observer is not None:
            if entry.last_token_at is None:
                self._observer.first_token(now - entry.request.arrival)
            else:
                self._observer.next_token(now - entry.last_token_at)
        self.journal.emit(entry, delta.tokens, now)
        if entry.paused_at is not None and (delta.tokens or delta.finish):
            if self._observer is not None:
                self._observer.resumed(now - entry.paused_at)
            entry.paused_at = None
        if entry.cached_tokens is None:
            entry.cached_tokens = delta.cached_tokens
        delta = delta._replace(cached_tokens=entry.cached_tokens)
        if delta.finish in ("stop", "length"):
            self._end(entry, delta.finish, cancel=False)
        if delta.finish in (None, "stop", "length"):
            entry.stream.push(delta)
        else:
            self._fail(entry.stream, delta.finish, _failure(delta))

    # Ends of requests

    def _end(self, entry: Entry, reason: FinishReason, cancel: bool) -> None:
        """cancel: the worker, if one runs it, has to be told."""
        now = time.monotonic()
        self.journal.end(entry, reason, now)
        self._paused.pop(entry.request.id, None)
        if entry.member is not None:
            entry.member.drop(entry, cancel)
        if self._observer is not None:
            self._observer.finished(reason, now - entry.request.arrival)
        if not self.journal.entries:
            self._idle.set()

    def _fail(self, stream: Stream, reason: FinishReason, error: PitstopError | None) -> None:
        """End all that is open of one user request, here and in the worker."""
        for request_id in stream.open:
            entry = self.journal.entries.get(request_id)
            if entry is not None:
                self._end(entry, reason, cancel=True)
        stream.end(error)

    def _cancel(self, stream: Stream) -> None:
        self._fail(stream, "cancelled", None)

    def _expire(self, entry: Entry) -> None:
        """Its deadline has come. Who waits ends now; the engine gets DEADLINE_GRACE to end what it computes."""
        if entry.member is not None and entry.last_token_at is not None:
            if time.monotonic() < entry.request.deadline + DEADLINE_GRACE:
                self._arm(entry, DEADLINE_GRACE)
                return
            log.warning("request %s outlived its deadline in the worker and is ended by the front", entry.request.id)
        self._fail(entry.stream, "timeout", DeadlineExceeded(_TIME_UP))

    def _end_all(self, reason: FinishReason, error: PitstopError) -> None:
        for entry in list(self.journal.entries.values()):
            if entry.request.id in self.journal.entries:
                self._fail(entry.stream, reason, error)


_CUT_OFF = "The server stopped before the answer was complete; try again."
_TIME_UP = "The request's time is up; ask for fewer tokens or raise `timeout`."
_WHY: dict[State, str] = {
    "loading": "The model is still loading; try again shortly.",
    "restarting": "The worker died and is being restarted; try again shortly.",
    "draining": "The server is shutting down; try another one.",
    "stopped": "The server has stopped.",
}


def _failure(delta: Delta) -> PitstopError:
    if delta.finish == "timeout":
        return DeadlineExceeded(_TIME_UP)
    if delta.finish == "cancelled":
        return Unavailable("The worker cancelled the request; try again.")
    return PitstopError(delta.message or "The engine failed on this request.")
