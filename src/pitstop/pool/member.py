"""One worker process and its life: spawned, ready, replaced when it dies, retired. Belongs to the event loop and never blocks it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from pitstop.config import Adapter, EngineConfig, PoolConfig
from pitstop.engine.protocol import PROTOCOL, AdapterChange, Failed, Ready, Stats, Step, disagreement
from pitstop.engine.recorder import RecordedPlan
from pitstop.errors import ConfigError, DeadlineExceeded, PitstopError, Unavailable, WorkerDied
from pitstop.pool import gauges
from pitstop.pool.adapters import Held
from pitstop.pool.backoff import Backoff
from pitstop.pool.decoding import Decoding
from pitstop.pool.journal import Entry
from pitstop.pool.loan import Loan
from pitstop.pool.owner import Owner
from pitstop.pool.probe import Answer, Probes, probe_request
from pitstop.pool.stream import Delta
from pitstop.pool.texts import Texts
from pitstop.pool.watchdog import Vitals, Watch
from pitstop.pool.worker import Process, Worker, spawn
from pitstop.types import Request

log = logging.getLogger(__name__)

Life = Literal["starting", "ready", "retiring", "dead"]


class Member:
    """A place in the pool that is filled by one worker process at a time, all of one config.

    starting: no worker is ready, one will be. ready. retiring: ends when its last request has. dead: has ended, and will not come back.
    `texts`: of the model that `config` names. `facts` is what the latest worker reported when it became ready. The pool's to set:
    `routed`, new requests come here; `position`, by which the router knows it.
    """

    def __init__(
        self,
        number: int,
        engine: EngineConfig,
        config: PoolConfig,
        owner: Owner,
        texts: Texts,
        command: Sequence[str],
        first: Process | None = None,
        background: bool = False,
    ) -> None:
        """first: a process for the first worker that was spawned ahead. background: leave the processors to others until `call_forward`.

        The member starts at once; await `ready`.
        """
        self.number = number
        self.config = engine
        self.texts = texts
        self.facts: Ready | None = None
        self.routed = False
        self.position = number
        self.entries: dict[str, Entry] = {}
        self.adapters = Held()
        self.gone = asyncio.Event()
        """Set once the member is dead and its process has ended."""
        self._pool_config = config
        self._owner = owner
        self.command = tuple(command)
        self._first = first
        self._background = background
        self._incarnation = 0
        self._worker: Worker | None = None
        self._decoding = Decoding(texts.tokenizer)
        self._ready_since: float | None = None
        self.exit_status = ""
        """How the worker that was ready last has ended."""
        self._served = 0.0
        self._retiring = self._dead = False
        self._worker_ready: asyncio.Future[Ready] | None = None
        self._worker_gone = asyncio.Event()
        self._stats, self._past = Stats(), Stats()
        self._probes = Probes()
        self._loan = Loan()
        self._heard_at = 0.0
        self._watch: Watch | None = None
        self._vitals: Vitals | None = None
        self._backoff = Backoff(config.restart_backoff)
        self._started: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._started.add_done_callback(lambda future: future.cancelled() or future.exception())  # whoever does not ask is not told
        self._supervisor = asyncio.create_task(self._supervise(), name=f"member-{number}")
        self._closing: asyncio.Task[None] | None = None

    @property
    def life(self) -> Life:
        if self._dead:
            return "dead"
        if self._retiring:
            return "retiring"
        return "ready" if self.up else "starting"

    @property
    def up(self) -> bool:
        """Whether a worker is there that runs what it is given."""
        return self._ready_since is not None

    @property
    def busy(self) -> bool:
        return bool(self.entries) or len(self._probes) > 0

    @property
    def numerics(self) -> str:
        """Equal for members whose answers are equal to the bit; "" before the first worker was ready."""
        return self.facts.numerics if self.facts is not None else ""

    def suits(self, entry: Entry) -> bool:
        """Whether the choice is for this model, with an adapter that it has, and fits its context."""
        request, adapters = entry.request, self.adapters.ready
        fits = self.facts is not None and len(request.prompt) + request.params.max_tokens <= self.facts.context
        return fits and entry.texts is self.texts and (not request.adapter or request.adapter in adapters)

    @property
    def load(self) -> int:
        """Tokens that are still to be computed for its requests at most."""
        return sum(entry.outstanding for entry in self.entries.values())

    @property
    def crashed(self) -> bool:
        """Whether the worker that has ended did so by its own fault."""
        return self._worker.crashed

    @property
    def condemned(self) -> bool:
        """Whether the worker that has ended was condemned."""
        return self._worker.condemned

    @property
    def last_plans(self) -> list[RecordedPlan]:
        """Of the worker that has ended, in order."""
        return self._worker.last_plans

    @property
    def pid(self) -> int | None:
        """Of the worker process, which may have ended; None before the first."""
        return self._worker.pid if self._worker is not None else None

    @property
    def restarts(self) -> int:
        """Workers started after the first."""
        return max(0, self._incarnation - 1)

    @property
    def deaths(self) -> int:
        """Of workers in a row that were not healthy for a minute in between."""
        return self._backoff.deaths

    @property
    def stats(self) -> Stats:
        """Gauges of the living worker; counters of all incarnations together."""
        return gauges.add([self._past, self._stats])

    def last_step_age(self, now: float) -> float | None:
        """Seconds since the last step, or since there is work if that is later; None without work."""
        return now - self._heard_at if self.up and self.busy else None

    async def ready(self) -> Ready:
        """Wait for the first worker. Raises ConfigError with its own message when it cannot start or takes longer than `start_timeout`."""
        return await asyncio.shield(self._started)

    def submit(self, entry: Entry) -> None:
        """Run a choice, from where it is. The member must be up."""
        self._hear_if_idle()
        request_id = entry.request.id
        entry.member = self
        entry.computed = False
        if not entry.begun:
            entry.numerics = self.numerics
        self.entries[request_id] = entry
        self._decoding.open(request_id, entry.text)
        self._send(entry.continuation())

    def drop(self, entry: Entry, cancel: bool) -> None:
        """Forget a choice that has ended. cancel: the worker does not know yet."""
        request_id = entry.request.id
        if self.entries.pop(request_id, None) is None:
            return
        entry.member = None
        self._decoding.close(request_id)
        if cancel:
            self._worker.cancel(request_id)
        self._leave_when_done()

    async def probe(self, prompt: list[int], max_tokens: int, timeout: float) -> list[int]:
        """The greedy continuation of `prompt` in tokens, end tokens ignored, from this member's worker.

        It goes before all requests, is in no count of theirs, and computes everything itself: nothing is taken from the prefix cache,
        where a page from better times could hide what is wrong now, and nothing is left there.
        Raises Unavailable without a ready worker, DeadlineExceeded after `timeout` seconds, WorkerDied, and PitstopError with the
        engine's reason to refuse.
        """
        return (await self.aside(probe_request(prompt, max_tokens, timeout), timeout)).tokens

    async def aside(self, request: Request, timeout: float) -> Answer:
        """The answer to a question of our own, beside the queue. Raises as `probe` does."""
        if not self.up:
            raise Unavailable(f"worker {self.number} is not ready")
        self._hear_if_idle()
        worker = self._worker
        answer = self._probes.open(request)
        self._send(request)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(f"worker {self.number} did not answer a probe within {timeout:.3g} s") from None
        finally:
            if self._probes.close(request.id):
                worker.cancel(request.id)
            self._leave_when_done()

    def load_adapter(self, adapter: Adapter) -> asyncio.Future[None]:
        """Let the worker load an adapter. Done when it has it; see Held.expect. The member must be up."""
        expected = self.adapters.expect(adapter.id)
        self._worker.change(AdapterChange(adapter, True))
        return expected

    def unload_adapter(self, adapter: Adapter) -> None:
        """No request of it is left."""
        self.adapters.drop(adapter.id)
        if self._worker is not None:
            self._worker.change(AdapterChange(adapter, False))

    def call_forward(self) -> None:
        """Requests come from now on. The member must be up."""
        if self._background:
            self._background = False
            self._worker.call_forward()

    async def lend(self, size: int, timeout: float) -> int:
        """Let the worker give so many bytes of its KV cache to the machine, all in all, or as many as nobody uses; 0: it has all again.

        Returns how many it gives, and a worker in its place would; `stats` are new then. Raises as `probe` does.
        """
        told = self._loan.ask(size)
        if not self.up:
            raise Unavailable(f"worker {self.number} is not ready")
        self._worker.lend(size)
        try:
            async with asyncio.timeout(timeout):
                return await told
        except TimeoutError:
            raise DeadlineExceeded(f"worker {self.number} was not to be reached within {timeout:.3g} s") from None

    def retire(self) -> None:
        """Take no new requests, and end when the last one has ended; `gone` is set then."""
        self._retiring, self.routed = True, False
        self._leave_when_done()

    async def close(self) -> None:
        """Stop the worker and wait until it is gone. What it still ran is forgotten."""
        self._dead, self.routed = True, False
        self._supervisor.cancel()
        await asyncio.gather(self._supervisor, return_exceptions=True)
        stopped = Unavailable(f"worker {self.number} is being stopped")
        self._lose(stopped)
        if not self._started.done():
            self._started.set_exception(stopped)
        await self._take_down()
        self._depart()

    def watch(self, seconds: float) -> None:
        """So much time went by since the last call. Shoots a worker that hangs, and leaves when what kept it has gone elsewhere.

        In the background it may be as slow as others are busy: whoever asks it there has a time limit.
        """
        self._leave_when_done()
        if not self._background and self.up and self.busy and self._watch.passed(seconds, self._vitals.pulse):
            silence, limit = self._watch.silence, self._watch.limit
            log.error("worker %d hangs: silent for %.1f s, %s (limit %.1f s)", self.number, silence, self._vitals.pulse(), limit)
            self._watch.silence = 0.0
            self._worker.shoot()

    def condemn(self) -> None:
        """Replace a worker that computes wrongly. What it has begun is computed again and compared."""
        log.error("worker %d computes wrongly and is replaced", self.number)
        self._worker.condemn()

    def kill(self) -> None:
        """SIGKILL the worker."""
        if self._worker is not None:
            self._worker.kill()

    def _leave_when_done(self) -> None:
        if self._retiring and not self._dead and not self.busy and not self._owner.needs(self):
            self._dead = True  # from now on, not only when the task begins
            self._closing = asyncio.create_task(self.close(), name=f"member-{self.number}-leaves")

    def _hear_if_idle(self) -> None:
        """A worker without work says nothing: its silence counts from its first work on."""
        if not self.busy:
            self._heard_at = time.monotonic()
            self._watch.silence = 0.0

    def _send(self, request: Request) -> None:
        self._watch.submitted(request)
        self._worker.submit(request)

    # Supervision

    async def _supervise(self) -> None:
        """Fill the place, and fill it again whenever the worker dies: later and later when it keeps dying."""
        while True:
            try:
                await self._bring_up()
            except Exception as error:
                await self._take_down()
                if not self._started.done():
                    self._started.set_exception(error)
                    self._depart()
                    return
                self._served = 0.0
                log.error("worker %d did not start: %s", self.number, error, exc_info=not isinstance(error, PitstopError))
            else:
                await self._worker_gone.wait()
            delay = self._backoff.died(self._served)
            if self._owner.needs(self):
                await asyncio.sleep(delay)
            if not self._owner.needs(self):
                self._depart()
                return

    def _depart(self) -> None:
        self._dead, self.routed = True, False
        self._past, self._stats = gauges.counters(self.stats), Stats()
        if not self.gone.is_set():
            self.gone.set()
            self._owner.on_gone(self)

    async def _bring_up(self) -> None:
        """Start a new incarnation and wait until it is ready. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        self._incarnation += 1
        self._decoding = decoding = Decoding(self.texts.tokenizer)
        self._past, self._stats = gauges.counters(self.stats), Stats()
        self._worker_gone.clear()
        self._worker_ready = loop.create_future()

        def post(call: Callable[..., None], *arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed under us
                loop.call_soon_threadsafe(call, *arguments)

        def on_message(worker: Worker, message: Ready | Step | Failed) -> None:
            if isinstance(message, Step):
                deltas, stopped = decoding.step(message)
                for request_id in stopped:
                    worker.cancel(request_id)
                post(self._on_step, message, deltas)
            else:
                post(self._on_start, message)

        try:
            process, self._first = self._first or spawn(self.command, self._background), None
        except OSError as error:
            raise ConfigError(f"the worker cannot be started: {error}") from error
        config = replace(self.config, adapters=self._owner.adapters.all())
        self._worker = Worker(self._incarnation, config, process, on_message, lambda worker: post(self._on_exit, worker))
        log.info("worker %d has process id %d", self.number, self._worker.pid)
        try:
            async with asyncio.timeout(self._pool_config.start_timeout):
                self.facts = await self._worker_ready
        except TimeoutError:
            raise ConfigError(f"the worker was not ready within {self._pool_config.start_timeout:g} s") from None
        if self._worker_gone.is_set():
            raise ConfigError(f"the worker {self._worker.exit_status} as soon as it was ready")
        longest = self.config.prefill_chunk if self.facts.generates else max(self.config.prefill_chunk, self.facts.context)
        self._watch = Watch(self.facts, longest, self._pool_config.hang_floor)
        self._vitals = Vitals(self._worker.pid)
        self.adapters.take(self.facts.adapters)
        self._catch_up(config.adapters)
        if self._loan.size:
            self._worker.lend(self._loan.size)
        self._ready_since = time.monotonic()
        if not self._started.done():
            self._started.set_result(self.facts)
        self._owner.on_ready(self)
        self._leave_when_done()

    def _catch_up(self, adapters: Sequence[Adapter]) -> None:
        """Tell a worker that has become ready what has changed since it was told of these adapters."""
        now = self._owner.adapters.all()
        for adapter in now:
            if adapter not in adapters:
                told = self.load_adapter(adapter)
                told.add_done_callback(lambda future: future.cancelled() or future.exception())  # nobody waits for it
        for adapter in adapters:
            if adapter not in now:
                self.unload_adapter(adapter)

    async def _take_down(self) -> None:
        if self._worker is not None:
            if not self.up:  # it has nothing to lose yet, and would notice the end of file only after loading
                self._worker.kill()
            self._worker.stop()
            await asyncio.to_thread(self._worker.join)

    def _lose(self, error: PitstopError) -> None:
        """The worker is gone: who waits for it is told."""
        self._probes.fail(error)
        self._loan.fail(error)
        self.adapters.lose()

    # What the worker's reader thread posts

    def _on_start(self, message: Ready | Failed) -> None:
        if self._worker_ready is None or self._worker_ready.done():
            return
        if isinstance(message, Failed):
            self._worker_ready.set_exception(ConfigError(message.message))
        elif reason := disagreement(PROTOCOL, message.protocol, message.version):
            self._worker_ready.set_exception(ConfigError(reason))
        else:
            self._worker_ready.set_result(message)

    def _on_step(self, step: Step, deltas: list[Delta]) -> None:
        self._heard_at = time.monotonic()
        self._watch.heard(step)
        self._stats = step.stats
        self._probes.take(step.outputs)
        self._loan.take(step.lent)
        self._owner.on_step(self, step, deltas)
        if step.adapters:
            self.adapters.take(step.adapters)
            self._owner.on_ready(self)

    def _on_exit(self, worker: Worker) -> None:
        """The process has been reaped, and all that it sent has been posted before."""
        if worker is not self._worker or self._dead:
            return
        if self._worker_ready is not None and not self._worker_ready.done():
            self._worker_ready.set_exception(ConfigError(f"the worker {worker.exit_status} before it was ready; its output above says why"))
        elif self.up:
            log.error("worker %d %s with %d requests in flight", self.number, worker.exit_status, len(self.entries))
            self._served = time.monotonic() - self._ready_since
            self.exit_status = worker.exit_status
        self._ready_since = None
        self._worker_gone.set()
        self._lose(WorkerDied(f"worker {self.number} {worker.exit_status}"))
        entries, self.entries = list(self.entries.values()), {}
        for entry in entries:
            entry.member = None
        self._owner.on_death(self, entries)
