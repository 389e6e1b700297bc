"""What the server sees: requests go in, streams come out, whichever member runs them. All methods belong to the event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from pitstop.config import EngineConfig, PoolConfig
from pitstop.engine.protocol import Ready, Stats, Step
from pitstop.errors import ConfigError, DeadlineExceeded, PitstopError, Unavailable, WorkerDied
from pitstop.pool import gauges
from pitstop.pool.adapters import Adapters
from pitstop.pool.dispatch import Dispatch
from pitstop.pool.door import Place
from pitstop.pool.facts import memory_note, together
from pitstop.pool.failures import CUT_OFF, TIME_UP, WHY, failure
from pitstop.pool.gauges import Gauges, Observer, State
from pitstop.pool.journal import Entry, Journal
from pitstop.pool.member import Member
from pitstop.pool.prefixes import Beginning
from pitstop.pool.records import Records
from pitstop.pool.stream import Delta, Stream
from pitstop.pool.texts import Served, Texts
from pitstop.pool.watchdog import TICK
from pitstop.pool.worker import WORKER_COMMAND, Process
from pitstop.types import FinishReason, Request

log = logging.getLogger(__name__)

DEADLINE_GRACE = 2.0
"""Seconds that the engine gets to end a request whose time is up, before the front does it."""


class Pool:
    """Members, the journal of what is in flight, and the choice of who runs it.

    `first` is a process for the first worker that was spawned ahead, so that it imports while the front does.
    """

    def __init__(
        self,
        config: PoolConfig,
        engine: EngineConfig,
        texts: Texts,
        observer: Observer | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        first: Process | None = None,
    ) -> None:
        self.config = config
        self.journal = Journal()
        self.members: list[Member] = []
        """Those that are not dead, oldest first."""
        self.adapters = Adapters(engine.adapters, self.members, self.journal.entries)
        self._engine = engine
        self._observer = observer
        self._command = command
        self._first = first
        self._numbers = itertools.count()
        self._phase: State = "loading"  # "ready" from the end of the start on, whatever becomes of the workers
        self._facts: Ready | None = None
        self._dispatch = Dispatch(self.journal, self.members)
        self._dispatch.texts = texts
        self._idle = asyncio.Event()  # nothing is in flight
        self._watchdog: asyncio.Task[None] | None = None
        self._records = Records(config)
        self._past = Stats()
        self._past_restarts = 0

    @property
    def state(self) -> State:
        """ready: new requests are taken. restarting: no worker is there; what was accepted waits for one."""
        if self._phase == "ready" and not self._dispatch.open_members():
            return "restarting"
        return self._phase

    @property
    def facts(self) -> Ready | None:
        """What the workers that get new requests reported, together, or the last ones that did; None before the first was ready."""
        members = self._dispatch.open_members()
        if members:
            self._facts = together(members)
        return self._facts

    @property
    def texts(self) -> Texts:
        """Those of the model that new requests are for."""
        return self._dispatch.texts

    @property
    def model(self) -> str:
        """Path of the model that new requests are for."""
        members = self._dispatch.open_members()
        return members[0].config.model if members else self._engine.model

    @property
    def served(self) -> Served:
        """What a new request is prepared for. Raises Unavailable before the first worker was ready."""
        if (facts := self.facts) is None:
            raise Unavailable(WHY[self._phase])
        return Served(self.texts, facts)

    def serves(self, served: Served) -> bool:
        """Whether what was prepared for that can be submitted as it is."""
        return served.texts is self.texts and served.facts.context <= self.facts.context

    async def start(self) -> Ready:
        """Start the first workers and wait until they are ready.

        Raises ConfigError with a worker's own message when it cannot start, or when it takes longer than `start_timeout`.
        """
        try:
            engine = replace(self._engine, workers=self.config.workers)
            members = [self.add_member(engine, self._first if number == 0 else None) for number in range(self.config.workers)]
            await asyncio.gather(*(member.ready() for member in members))
            for member in members:
                if error := "; ".join(state.error for state in member.facts.adapters if state.error):
                    raise ConfigError(error)
                self.promote(member)
            self._watchdog = asyncio.create_task(self._watch(), name="pool-watchdog")
        except BaseException:
            self._phase = "stopped"
            await self.close()
            raise
        if len(members) == 1:
            return self.facts
        note = await asyncio.to_thread(memory_note, members)
        return msgspec.structs.replace(self.facts, notes=[*self.facts.notes, note])

    # Members

    def add_member(
        self,
        engine: EngineConfig,
        first: Process | None = None,
        texts: Texts | None = None,
        command: Sequence[str] | None = None,
        background: bool = False,
    ) -> Member:
        """A new member that starts now and gets no requests before it is promoted. One that dies before that is not replaced.

        texts: of the model that `engine` names, by default those of the model that is served; command: the worker program; background:
        leave the processors to the others until then.
        Await its `ready`, which raises ConfigError when it cannot start; `retire` it when it is not wanted.
        """
        member = Member(next(self._numbers), engine, self.config, self, texts or self.texts, command or self._command, first, background)
        self.members.append(member)
        return member

    def promote(self, member: Member, replacing: Member | None = None) -> None:
        """Send new requests to a ready member, too. Raises Unavailable when it is not ready.

        If it has another model's words, new requests are for that model from now on, and go to such members only.
        replacing: the member that will be retired for it: what is known of its prefixes then leads to the new one.
        """
        if member.life != "ready":
            raise Unavailable(f"worker {member.number} is {member.life}")
        if replacing is not None:
            member.position, replacing.position = replacing.position, member.position
        member.routed = True
        member.call_forward()
        if member.texts is not self.texts:
            self._dispatch.texts = member.texts
            self._dispatch.router.forget()
        if self._phase == "loading":
            self._phase = "ready"
        self.on_ready(member)

    def retire(self, member: Member) -> None:
        """Send no more requests to a member; it ends when those it has have ended. Its `gone` event is set then."""
        member.retire()

    async def probe(self, prompt: list[int], max_tokens: int, timeout: float, member: Member | None = None) -> list[int]:
        """`Member.probe` of `member`, or of the one with the oldest step among those that take requests."""
        if member is None:
            members = self._dispatch.open_members()
            if not members:
                raise Unavailable(WHY.get(self.state, "no worker is ready"))
            now = time.monotonic()
            member = max(members, key=lambda candidate: candidate.last_step_age(now) or 0.0)
        return await member.probe(prompt, max_tokens, timeout)

    def hot_prompts(self, count: int, member: Member | None = None) -> list[Beginning]:
        """The prompt beginnings used last (by `member`), to be replayed into a new member before it is promoted."""
        return self._dispatch.router.prefixes.hot(count, member.position if member is not None else None)

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
            raise Unavailable(WHY[self.state])

    def gauges(self) -> Gauges:
        return gauges.read(self.state, self.journal, self.members, self._past, self._past_restarts)

    def _submit(self, requests: list[Request]) -> Stream:
        if self._phase != "ready":  # without a worker it waits: it had been let in
            raise Unavailable(WHY[self._phase])
        self.adapters.check(requests[0].adapter)
        stream, texts = Stream([request.id for request in requests], self._cancel), self.texts
        for request in requests:
            entry = Entry(request, stream, texts)
            self.journal.add(entry)
            self._arm(entry)
            self._dispatch.run(entry)
        return stream

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
                async with asyncio.timeout(self.config.stop_timeout):
                    await self._idle.wait()
            except TimeoutError:
                log.warning("%d requests did not finish within %g s and are ended", len(self.journal.entries), self.config.stop_timeout)
        self._end_all("cancelled", Unavailable(CUT_OFF))

    async def close(self) -> None:
        """End what is in flight with an error, stop the workers and wait until they are gone."""
        self._phase = "stopped"
        self._end_all("cancelled", Unavailable(CUT_OFF))
        if self._watchdog is not None:
            self._watchdog.cancel()
        await asyncio.gather(*(member.close() for member in list(self.members)), self._records.close(), return_exceptions=True)

    def worker_pids(self) -> list[int]:
        """The process of each member's latest worker, dead or alive."""
        return [pid for member in self.members if (pid := member.pid) is not None]

    def kill(self) -> None:
        """SIGKILL the workers and end what is in flight, for a stop in a hurry."""
        self._phase = "stopped"
        for member in self.members:
            member.kill()
        self._end_all("cancelled", Unavailable(CUT_OFF))

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
        self.adapters.give_up(member)
        for entry in self.adapters.lost(self._dispatch.waiting()):
            self._fail(entry.stream, "error", Unavailable("The adapter of this request cannot be loaded again."))
        self._resume()

    def _resume(self) -> None:
        for entry in self._dispatch.waiting():
            self._dispatch.run(entry)

    def on_death(self, member: Member, entries: list[Entry]) -> None:
        """What the worker ran goes on elsewhere or waits, except what seems to be the cause or has had its attempts."""
        if self._phase != "stopped":
            self._records.keep(member, entries, self.adapters.all())
        self._dispatch.bury(member, entries)
        for entry in entries:
            if entry.request.id not in self.journal.entries:
                continue  # it went with another choice of its request
            error = Unavailable(CUT_OFF) if self._phase == "stopped" else self._dispatch.verdict(entry)
            if error is None:
                self._dispatch.run(entry)
            else:
                log.error("request %s: %s", entry.request.id, error)
                self._fail(entry.stream, "error", error)
        self._resume()

    def on_gone(self, member: Member) -> None:
        self.members.remove(member)
        self._past = gauges.add([self._past, member.stats])
        self._past_restarts += member.restarts

    def needs(self, member: Member) -> bool:
        if self._phase == "stopped":
            return False
        if member.life == "retiring":  # those that have begun there may need its arithmetic
            return self._dispatch.wait_for(member)
        return member.routed and (self._phase != "draining" or bool(self.journal.entries))

    def on_step(self, member: Member, step: Step, deltas: list[Delta]) -> None:
        now = time.monotonic()
        for request_id in step.admitted:
            if (entry := member.entries.get(request_id)) is not None:
                self.journal.move(entry, "running")
                entry.stream.admitted = entry.stream.admitted or now
        for request_id in step.preempted:
            if request_id in member.entries:
                self.journal.move(member.entries[request_id], "queued")
        for delta in deltas:
            if delta.id in member.entries:
                self._take(member.entries[delta.id], delta, now)

    def _take(self, entry: Entry, delta: Delta, now: float) -> None:
        computed = delta.tokens
        if entry.recheck is not None and (delta := self._checked(entry, delta)) is None:
            return
        if delta.tokens and self._observer is not None:
            if entry.last_token_at is None:
                self._observer.first_token(now - entry.request.arrival)
            else:
                self._observer.next_token(now - entry.last_token_at)
        self.journal.emit(entry, computed, now)
        if entry.paused_at is not None and (delta.tokens or delta.finish):
            if self._observer is not None:
                self._observer.resumed(now - entry.paused_at)
            entry.paused_at = None
        self._dispatch.progressed(entry)
        if entry.cached_tokens is None:
            entry.cached_tokens = delta.cached_tokens
        delta = delta._replace(cached_tokens=entry.cached_tokens)
        if delta.finish in ("stop", "length"):
            self._end(entry, delta.finish, cancel=False)
        if delta.finish in (None, "stop", "length"):
            entry.told.append(delta)
            entry.stream.push(delta)
        else:
            self._fail(entry.stream, delta.finish, failure(delta))

    def _checked(self, entry: Entry, delta: Delta) -> Delta | None:
        """What is new in a delta of an answer that is computed again; None when nothing is, or when it contradicts what was told."""
        try:
            new = self.journal.checked(entry, delta)
        except WorkerDied as error:
            log.error("request %s: %s", entry.request.id, error)
            self._fail(entry.stream, "error", error)
            return None
        if new is None:
            self._dispatch.progressed(entry)
        return new

    # Ends of requests

    def _end(self, entry: Entry, reason: FinishReason, cancel: bool) -> None:
        """cancel: the worker, if one runs it, has to be told."""
        now = time.monotonic()
        self.journal.end(entry, reason, now)
        self._dispatch.forget(entry)
        if entry.member is not None:
            entry.member.drop(entry, cancel)
        self.adapters.ended(entry.request.adapter)
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
        self._fail(entry.stream, "timeout", DeadlineExceeded(TIME_UP))

    def _end_all(self, reason: FinishReason, error: PitstopError) -> None:
        for entry in list(self.journal.entries.values()):
            if entry.request.id in self.journal.entries:
                self._fail(entry.stream, reason, error)
