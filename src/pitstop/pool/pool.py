"""The workers as the front sees them: start, supervise, route, drain. All methods belong to the event loop and none of them blocks it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from pitstop.config import EngineConfig, PoolConfig
from pitstop.engine.protocol import Failed, Ready, Stats, Step
from pitstop.errors import ConfigError, DeadlineExceeded, PitstopError, Unavailable, WorkerDied
from pitstop.pool.decoding import Decoding
from pitstop.pool.door import Place
from pitstop.pool.journal import Entry, Journal
from pitstop.pool.stream import Delta, Stream
from pitstop.pool.worker import WORKER_COMMAND, Process, Worker, spawn
from pitstop.text.tokenizer import Tokenizer
from pitstop.types import FinishReason, Request

log = logging.getLogger(__name__)

State = Literal["loading", "ready", "restarting", "draining", "stopped"]

DEADLINE_GRACE = 2.0
"""Seconds that the engine gets to end a request whose time is up, before the front does it."""

_MAX_BACKOFF = 30.0
_HEALTHY_AFTER = 60.0  # a worker that lived so long (seconds) was no crash loop


class Observer(Protocol):
    """What wants to know about latencies, in seconds. Called on the event loop."""

    def first_token(self, seconds: float) -> None: ...

    def next_token(self, seconds: float) -> None: ...

    def finished(self, reason: FinishReason, seconds: float) -> None: ...


class Gauges(NamedTuple):
    """An exact snapshot: accepted = finished, all reasons together, + queued + running. Counts are choices, not user requests."""

    state: State
    encoding: int
    queued: int
    running: int
    accepted: int
    finished: dict[FinishReason, int]
    rejected: int  # requests refused because the queue was full
    restarts: int
    stats: Stats  # gauges of the living worker; counters of all incarnations together


class Pool:
    """One worker for now, replaced whenever it dies.

    `first` is a process for the first worker that was spawned ahead, so that it imports while the front does.
    `facts` is what the current worker reported when it became ready, None before the first did.
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
        self.journal = Journal()
        self.state: State = "loading"
        self.facts: Ready | None = None
        self._engine = engine
        self._tokenizer = tokenizer
        self._observer = observer
        self._command = command
        self._first = first
        self._incarnation = 0
        self._worker: Worker | None = None
        self._decoding = Decoding(tokenizer)
        self._ready: asyncio.Future[Ready] | None = None
        self._serving = False  # the current worker has become ready
        self._gone = asyncio.Event()  # the current worker has ended
        self._idle = asyncio.Event()  # nothing is in flight
        self._supervisor: asyncio.Task[None] | None = None
        self._stats, self._past = Stats(), Stats()

    async def start(self) -> Ready:
        """Start the first worker and wait until it is ready.

        Raises ConfigError with the worker's own message when it cannot start, or when it takes longer than `start_timeout`.
        """
        try:
            facts = await self._bring_up()
        except BaseException:
            self.state = "stopped"
            await self._take_down()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="pool-supervisor")
        return facts

    def enter(self, choices: int = 1) -> Place:
        """Take places in the queue for a request that is about to be read and tokenised.

        Raises Unavailable when no worker can take it, Overloaded when the queue is full.
        """
        return Place(self.journal, self.config.max_waiting, self.check_available, self._submit).widen(choices)

    def check_available(self) -> None:
        """Raise Unavailable unless new requests are taken."""
        if self.state != "ready":
            raise Unavailable(_WHY[self.state])

    def gauges(self) -> Gauges:
        journal = self.journal
        return Gauges(
            self.state,
            journal.encoding,
            journal.queued,
            journal.running,
            journal.accepted,
            dict(journal.finished),
            journal.rejected,
            max(0, self._incarnation - 1),
            _total(self._past, self._stats),
        )

    def _submit(self, requests: list[Request]) -> Stream:
        self.check_available()
        assert self._worker is not None
        stream = Stream([request.id for request in requests], self._cancel)
        loop = asyncio.get_running_loop()
        for request in requests:
            entry = Entry(request, stream)
            if request.deadline is not None:
                left = request.deadline - time.monotonic() + DEADLINE_GRACE
                entry.timer = loop.call_later(left, self._expire, entry)
            self.journal.add(entry)
            self._decoding.open(request)
            self._worker.submit(request)
        return stream

    async def drain(self) -> None:
        """Take no new requests and wait until those in flight have ended, `stop_timeout` at most; what is left then ends with an error."""
        if self.state != "stopped":
            self.state = "draining"
        self._idle.clear()
        if self.journal.entries:
            try:
                await asyncio.wait_for(self._idle.wait(), self.config.stop_timeout)
            except TimeoutError:
                log.warning("%d requests did not finish within %g s and are ended", len(self.journal.entries), self.config.stop_timeout)
        self._end_all("cancelled", Unavailable(_CUT_OFF))

    async def close(self) -> None:
        """End what is in flight with an error, stop the worker and wait until it is gone."""
        self.state = "stopped"
        self._end_all("cancelled", Unavailable(_CUT_OFF))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        await self._take_down()

    # Supervision

    async def _bring_up(self) -> Ready:
        """Start a new incarnation and wait for it."""
        loop = asyncio.get_running_loop()
        self._incarnation += 1
        self._decoding = Decoding(self._tokenizer)
        self._past, self._stats = _total(self._past, self._stats, keep_gauges=False), Stats()
        self._gone.clear()
        self._serving = False
        self._ready = loop.create_future()

        def post(call: Callable[..., None], *arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed under us
                loop.call_soon_threadsafe(call, *arguments)

        decoding = self._decoding

        def on_message(worker: Worker, message: Ready | Step | Failed) -> None:
            if isinstance(message, Step):
                deltas, stopped = decoding.step(message)
                for request_id in stopped:
                    worker.cancel(request_id)
                post(self._on_step, message, deltas)
            else:
                post(self._on_start, message)

        def on_exit(worker: Worker) -> None:
            post(self._on_exit, worker)

        try:
            process, self._first = self._first or spawn(self._command), None
        except OSError as error:
            self._gone.set()
            raise ConfigError(f"the worker cannot be started: {error}") from error
        self._worker = Worker(self._incarnation, self._engine, process, on_message, on_exit)
        log.info("worker %d has process id %d", self._incarnation, self._worker.pid)
        try:
            self.facts = await asyncio.wait_for(self._ready, self.config.start_timeout)
        except TimeoutError:
            raise ConfigError(f"the worker was not ready within {self.config.start_timeout:g} s") from None
        self._serving = True
        if self.state in ("loading", "restarting"):
            self.state = "ready"
        return self.facts

    async def _supervise(self) -> None:
        """Replace the worker whenever it dies, later and later when it keeps dying."""
        backoff, since = self.config.restart_backoff, time.monotonic()
        while True:
            await self._gone.wait()
            if time.monotonic() - since >= _HEALTHY_AFTER:
                backoff = self.config.restart_backoff
            await asyncio.sleep(backoff)
            if self.state in ("draining", "stopped"):
                return
            backoff = min(_MAX_BACKOFF, 2 * backoff)
            since = time.monotonic()
            try:
                await self._bring_up()
            except Exception as error:
                log.error("worker %d did not start: %s", self._incarnation, error, exc_info=not isinstance(error, PitstopError))
                await self._take_down()

    async def _take_down(self) -> None:
        if self._worker is not None:
            if not self._serving:  # it has nothing to lose yet, and would notice the end of file only after loading
                self._worker.kill()
            self._worker.stop()
            await asyncio.to_thread(self._worker.join)

    def worker_pids(self) -> list[int]:
        """The process of each worker incarnation that was started last, dead or alive."""
        return [self._worker.pid] if self._worker is not None else []

    def kill(self) -> None:
        """SIGKILL the worker, for a stop in a hurry."""
        if self._worker is not None:
            self._worker.kill()

    # What the worker's reader thread posts

    def _on_start(self, message: Ready | Failed) -> None:
        if self._ready is None or self._ready.done():
            return
        if isinstance(message, Ready):
            self._ready.set_result(message)
        else:
            self._ready.set_exception(ConfigError(message.message))

    def _on_exit(self, worker: Worker) -> None:
        if worker.incarnation != self._incarnation:
            return
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(ConfigError(f"the worker {worker.exit_status} before it was ready; its output above says why"))
        if self.state == "ready":
            self.state = "restarting"
            in_flight = len(self.journal.entries)
            log.error("worker %d %s with %d requests in flight; a new one is started", worker.incarnation, worker.exit_status, in_flight)
        self._end_all("error", WorkerDied("The worker that ran this request died; try again."))
        self._gone.set()

    def _on_step(self, step: Step, deltas: list[Delta]) -> None:
        now = time.monotonic()
        self._stats = step.stats
        entries = self.journal.entries
        for request_id in step.admitted:
            if request_id in entries:
                self.journal.move(entries[request_id], "running")
        for request_id in step.preempted:
            if request_id in entries:
                self.journal.move(entries[request_id], "queued")
        for delta in deltas:
            if delta.id in entries:
                self._take(entries[delta.id], delta, now)

    def _take(self, entry: Entry, delta: Delta, now: float) -> None:
        if delta.tokens and self._observer is not None:
            if entry.last_token_at is None:
                self._observer.first_token(now - entry.request.arrival)
            else:
                self._observer.next_token(now - entry.last_token_at)
        self.journal.emit(entry, delta.tokens, now)
        if delta.finish in ("stop", "length"):
            self._end(entry, delta.finish)
        if delta.finish in (None, "stop", "length"):
            entry.stream.push(delta)
        else:
            self._fail(entry.stream, delta.finish, _failure(delta))

    # Ends

    def _end(self, entry: Entry, reason: FinishReason) -> None:
        now = time.monotonic()
        self.journal.end(entry, reason, now)
        self._decoding.close(entry.request.id)
        if self._observer is not None:
            self._observer.finished(reason, now - entry.request.arrival)
        if not self.journal.entries:
            self._idle.set()

    def _fail(self, stream: Stream, reason: FinishReason, error: PitstopError | None) -> None:
        """End all that is open of one user request, here and in the worker."""
        for request_id in stream.open:
            entry = self.journal.entries.get(request_id)
            if entry is not None:
                self._end(entry, reason)
                if self._worker is not None:
                    self._worker.cancel(request_id)
        stream.end(error)

    def _cancel(self, stream: Stream) -> None:
        self._fail(stream, "cancelled", None)

    def _expire(self, entry: Entry) -> None:
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


_COUNTERS = ("steps", "preemptions", "prompt_tokens", "cached_tokens", "generated_tokens")


def _total(past: Stats, now: Stats, keep_gauges: bool = True) -> Stats:
    """`now` with the counters of earlier incarnations added."""
    counters = {name: getattr(past, name) + getattr(now, name) for name in _COUNTERS}
    gauges = {name: getattr(now, name) for name in Stats.__struct_fields__ if name not in _COUNTERS} if keep_gauges else {}
    return Stats(**gauges, **counters)
