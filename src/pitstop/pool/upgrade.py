"""The two-phase upgrade: a new worker loads, is examined and warmed beside the one that serves; then new requests go to it.

It is in the background until then, and whatever fails leaves everything as it was. The old worker finishes what it has, and goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pitstop.config import EngineConfig
from pitstop.engine.guard_text import LIMIT
from pitstop.errors import DeadlineExceeded, PitstopError, Unavailable, UpgradeFailed
from pitstop.pool.gate import Figures, Gate
from pitstop.pool.member import Member
from pitstop.pool.memory import Need, need
from pitstop.pool.pool import Pool
from pitstop.pool.probe import replay_request
from pitstop.pool.texts import Opened, Texts

log = logging.getLogger(__name__)

State = Literal["checking", "loading", "gating", "warming", "switching", "retiring", "done", "rolled_back", "cancelled"]

HOT_PROMPTS = 32
"""Prompt beginnings that are replayed into the new worker, at most."""

LEND_TIME = 60.0
"""Seconds that a worker may take until it has lent of its KV cache: it answers after the step that runs."""

_CONTROLLED = ("device", "backend", "activations", "threads", "prefill_chunk", "max_running")  # of EngineConfig, in a Wish too


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be served instead. None: as it is now. Sizes in bytes, times in seconds."""

    model: str | None = None  # a name or a path
    kv: str | None = None
    kv_memory: int | None = None  # None: what the present worker has, or less if only that fits
    kv_guard: str | None = None
    context: int | None = None
    device: str | None = None
    backend: str | None = None
    activations: str | None = None
    threads: int | None = None
    prefill_chunk: int | None = None
    max_running: int | None = None
    python: str | None = None  # the interpreter of another installation
    max_kl: float = LIMIT  # nats, where answers may differ at all
    warm_time: float = 30.0  # for replaying prompt beginnings

    def changed(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def config(self, present: EngineConfig, path: str, memory: int) -> EngineConfig:
        """path: of the model; memory: the KV budget where none is wished for."""
        kv = {"codec": self.kv, "context": self.context, "guard": self.kv_guard}
        engine = {name: getattr(self, name) for name in _CONTROLLED}
        kv_config = replace(present.kv, memory=self.kv_memory or memory, **{k: v for k, v in kv.items() if v is not None})
        return replace(present, model=path, kv=kv_config, **{k: v for k, v in engine.items() if v is not None})


@dataclass(frozen=True, slots=True)
class _Plan:
    """What each new member is made of. config: where there is room; context: the shortest that it must have."""

    opened: Opened
    config: EngineConfig
    texts: Texts
    command: tuple[str, ...]
    context: int


class Upgrade:
    """One upgrade, from its beginning on. Belongs to the event loop."""

    def __init__(self, pool: Pool, wish: Wish, read: Callable[[str], Opened]) -> None:
        """read: opens a model's file, on a thread."""
        self.state: State = "checking"
        self.reason = ""
        self._pool = pool
        self._wish = wish
        self._read = read
        self._phases: list[dict[str, Any]] = []
        self._since = time.monotonic()
        self._olds = [member for member in pool.members if member.routed]
        self._old: Member | None = None
        self._new: Member | None = None  # not promoted yet
        self._switched: list[tuple[Member, Member]] = []  # old, new
        self._need: Need | None = None
        self._figures: Figures | None = None
        self._warmed = {"prompts": 0, "tokens": 0}
        self._restoring = self._stopped = False
        self._task = asyncio.create_task(self._run(), name="upgrade")

    @property
    def under_way(self) -> bool:
        return not self._task.done()

    @property
    def switched(self) -> bool:
        """Whether a new worker gets requests already: then it goes on to the end."""
        return bool(self._switched)

    async def wait(self) -> None:
        """Until it has ended, one way or the other."""
        await asyncio.wait([self._task])

    async def stop(self) -> None:
        """End it now. Before the switch everything stays as it was. What is being put back already is not disturbed."""
        if not (self._stopped or self._restoring):
            self._task.cancel()
        self._stopped = True
        await self.wait()

    def report(self) -> dict[str, Any]:
        """For people and programs; JSON."""
        phases = [*self._phases, self._phase()] if self.under_way else self._phases
        return {
            "state": self.state,
            "reason": self.reason or None,
            "wish": self._wish.changed(),
            "workers": {"replaced": len(self._switched), "of": len(self._olds)},
            "phases": list(phases),
            "memory": asdict(self._need) if self._need is not None else None,
            "gate": asdict(self._figures) if self._figures is not None else None,
            "warmed": dict(self._warmed),
            "requests_left": len(self._old.entries) if self.state == "retiring" and self._old is not None else 0,
        }

    async def _run(self) -> None:
        try:
            plan = await self._check()
            for old in self._olds:
                await self._replace(old, plan)
            self._enter("done")
        except asyncio.CancelledError:
            await self._undo("cancelled", "it was cancelled")
        except Exception as error:
            known = isinstance(error, PitstopError)
            reason = str(error) if known else f"{type(error).__name__}: {error}"
            log.error("the upgrade is rolled back while %s: %s", self.state, reason, exc_info=not known)
            await self._undo("rolled_back", f"{self.state}: {reason}")

    def _enter(self, state: State) -> None:
        self._phases.append(self._phase())
        self.state, self._since = state, time.monotonic()
        log.info("upgrade: %s", state)

    def _phase(self) -> dict[str, Any]:
        return {"state": self.state, "seconds": round(time.monotonic() - self._since, 3)}

    # Phase one

    async def _check(self) -> _Plan:
        """Everything that can be known before anything is started."""
        if self._pool.adapters.coming:
            raise UpgradeFailed("an adapter is being loaded; try again when it is there")
        for old in self._olds:
            if not old.up:
                raise UpgradeFailed(f"worker {old.number} is being restarted; try again when it is ready")
        if not self._olds:
            raise UpgradeFailed("no worker is there to be replaced")
        old, wish = self._olds[0], self._wish
        opened = await asyncio.to_thread(self._read, wish.model or old.config.model)
        more = sum(adapter.size for adapter in self._pool.adapters.all())
        opened = opened._replace(stored=opened.stored + more, wide=opened.wide + more)
        config = wish.config(old.config, opened.path, old.facts.kv_memory)
        texts = self._pool.texts if opened.texts.digest == self._pool.texts.digest else opened.texts
        command = (wish.python, "-m", "pitstop.engine.worker") if wish.python is not None else old.command
        return _Plan(opened, config, texts, command, min(config.kv.context or opened.context, old.facts.context))

    async def _make_room(self, old: Member, plan: _Plan) -> EngineConfig:
        """Of the new member: with less KV than planned where memory is short even when the old one gives what of its cache nobody uses."""
        await old.lend(0, LEND_TIME)  # for its figures as of now
        self._need = need(plan.config, plan.opened, old.facts, old.stats.kv_touched)
        if (over := self._need.over) <= 0:
            return plan.config
        lendable = min(over, old.stats.kv_spare)
        self._need = replace(self._need, lent=lendable)
        self._smaller(plan.config)  # so that nothing is lent in vain
        self._need = replace(self._need, lent=await old.lend(lendable, LEND_TIME) if lendable else 0)
        return self._smaller(plan.config)

    def _smaller(self, config: EngineConfig) -> EngineConfig:
        """With as much less KV as there is memory too little. Raises UpgradeFailed, with the figures, when that is no way out."""
        memory = config.kv.memory - max(0, self._need.over)
        if memory == config.kv.memory:
            return config
        if self._wish.kv_memory is not None or memory <= 0:
            over = self._need.over / 2**20
            raise UpgradeFailed(
                f"a second worker does not fit beside the first, {over:.0f} MiB are missing: {self._need}; lower --kv-memory"
            )
        return replace(config, kv=replace(config.kv, memory=memory))

    async def _replace(self, old: Member, plan: _Plan) -> None:
        if self.state != "checking":
            self._enter("checking")
        self._old = old
        config = await self._make_room(old, plan)
        self._need = replace(self._need, kv=config.kv.memory)
        self._enter("loading")
        pool = self._pool
        new = self._new = pool.add_member(config, texts=plan.texts, command=plan.command, background=True)
        facts = await new.ready()
        if facts.context < plan.context:
            raise UpgradeFailed(
                f"the new worker's context of {facts.context} tokens is shorter than the {plan.context} of now: its KV cache has "
                f"{config.kv.memory / 2**20:.0f} MiB; free some memory, or ask for a smaller --context"
            )
        if error := self._pool.adapters.failed(new):
            raise UpgradeFailed(f"the new worker cannot serve an adapter: {error}; unload it first, or keep the model")
        self._enter("gating")
        gate = Gate(old, new, self._wish.max_kl)
        self._figures = gate.figures
        await gate.check()
        self._enter("warming")
        await self._warm(old, new)
        self._enter("switching")
        self._switch(old, new)
        self._enter("retiring")
        await old.gone.wait()

    async def _warm(self, old: Member, new: Member) -> None:
        """Let the new one compute the prompt beginnings that were used last, the latest last; half the time it rests, for others' sake."""
        if new.texts is not old.texts:
            return  # they are other tokens there
        end, room = time.monotonic() + self._wish.warm_time, new.facts.capacity.tokens
        beginnings = []
        for adapter, prompt in self._pool.hot_prompts(HOT_PROMPTS, old):
            if len(prompt) <= min(room, new.facts.context) and adapter in {"", *new.adapters.ready}:
                beginnings.append((adapter, prompt))
                room -= len(prompt)
        for adapter, prompt in reversed(beginnings):
            start = time.monotonic()
            if (left := end - start) <= 0:
                return
            try:
                await new.aside(replay_request(prompt, left, adapter), left)
            except DeadlineExceeded:
                return
            except PitstopError:
                if not new.up:
                    raise
                continue  # its adapter has just been unloaded
            self._warmed["prompts"] += 1
            self._warmed["tokens"] += len(prompt)
            await asyncio.sleep(max(0.0, min(time.monotonic() - start, end - time.monotonic())))

    # Phase two

    def _switch(self, old: Member, new: Member) -> None:
        """In one moment: nothing is awaited."""
        if not new.up:
            raise Unavailable("the new worker has just died")
        self._pool.promote(new, replacing=old)
        self._pool.retire(old)
        self._new = None
        self._switched.append((old, new))

    # Back

    async def _undo(self, state: State, reason: str) -> None:
        """Everything as it was, and only then the verdict."""
        self._restoring = True
        if self._new is not None:
            await self._new.close()
            self._new = None
        if self._need is not None and self._need.lent and self._old.routed:
            with contextlib.suppress(PitstopError):  # it has died, and begins anew
                await self._old.lend(0, LEND_TIME)
        self.reason = reason
        self._restoring = False
        try:
            for old, new in reversed(self._switched if state == "rolled_back" and not self._stopped else []):
                await self._put_back(old, new)
        except asyncio.CancelledError:
            self.reason += "; stopped before all workers were put back"
        self._enter(state)

    async def _put_back(self, old: Member, new: Member) -> None:
        """One of several was replaced before another failed: a worker like the old one takes its place again."""
        again = self._pool.add_member(old.config, texts=old.texts, command=old.command, background=True)
        try:
            await again.ready()
            self._pool.promote(again, replacing=new)
        except PitstopError as error:
            await again.close()
            self.reason += f"; worker {new.number} serves on, as its predecessor cannot be started again: {error}"
            return
        except asyncio.CancelledError:
            self._restoring = True
            await again.close()
            raise
        self._pool.retire(new)
        self._switched.remove((old, new))


class Upgrades:
    """One at a time, and what became of the latest."""

    def __init__(self, pool: Pool, read: Callable[[str], Opened]) -> None:
        self.latest: Upgrade | None = None
        self._pool = pool
        self._read = read

    @property
    def under_way(self) -> bool:
        return self.latest is not None and self.latest.under_way

    def begin(self, wish: Wish) -> Upgrade:
        """Raises Unavailable when no requests are taken. The caller asks `under_way` first."""
        self._pool.check_available()
        self.latest = Upgrade(self._pool, wish, self._read)
        return self.latest

    async def close(self) -> None:
        """The server stops."""
        if self.under_way:
            await self.latest.stop()
