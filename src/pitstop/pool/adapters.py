"""The LoRA adapters of a pool: which ones new requests may name, and which ones its workers have."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pitstop.config import Adapter
from pitstop.engine.protocol import AdapterState
from pitstop.errors import DeadlineExceeded, InvalidRequest, ModelNotFound, PitstopError, Unavailable, WorkerDied
from pitstop.models.lora.file import read_adapter as read_for
from pitstop.models.weights.source import open_model

if TYPE_CHECKING:
    from pitstop.pool.journal import Entry
    from pitstop.pool.member import Member

log = logging.getLogger(__name__)

LOAD_TIMEOUT = 120.0
"""Seconds that all workers together get to load one."""


def read_adapter(name: str, path: str, model: str) -> Adapter:
    """The adapter in the folder `path`, for the model at `model`. Raises InvalidRequest naming `name` or `path`."""
    return read_for(name, path, open_model(model).config)


class Held:
    """What one member's worker has, by id, and who waits for more."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def expect(self, name: str) -> asyncio.Future[None]:
        """Done when the worker has it; PitstopError with the worker's reason when it cannot, WorkerDied when it is gone."""
        return self._waiting.setdefault(name, asyncio.get_running_loop().create_future())

    def take(self, states: Iterable[AdapterState]) -> None:
        for state in states:
            waiting = self._waiting.pop(state.id, None)
            if not state.error:
                self.ready.add(state.id)
            if waiting is not None and not waiting.done():
                waiting.set_exception(PitstopError(state.error)) if state.error else waiting.set_result(None)

    def drop(self, name: str) -> None:
        self.ready.discard(name)
        self.fail(name)

    def lose(self) -> None:
        """The worker is gone."""
        self.ready.clear()
        for name in list(self._waiting):
            self.fail(name)

    def fail(self, name: str) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(WorkerDied("the worker ended while it loaded the adapter"))


class Adapters:
    """Adapters on their way in, those that are served, and those on their way out: unloaded while requests still use them.

    A worker that starts gets them all; the others are told of each change. Belongs to the event loop, but for `find` and `served`.
    """

    def __init__(self, first: Iterable[Adapter], members: Sequence[Member], entries: Mapping[str, Entry]) -> None:
        """members, entries: the pool's own. first: those that it begins with."""
        self.served: dict[str, Adapter] = {adapter.name: adapter for adapter in first}
        """By name."""
        self.since = dict.fromkeys(self.served, int(time.time()))
        """Seconds since 1970, by name."""
        self._members = members
        self._entries = entries
        self._coming: dict[str, Adapter] = {}  # by id, like the next
        self._leaving: dict[str, Adapter] = {}

    @property
    def coming(self) -> bool:
        return bool(self._coming)

    def all(self) -> tuple[Adapter, ...]:
        """What a worker must have."""
        return (*self.served.values(), *self._coming.values(), *self._leaving.values())

    def check(self, name: str) -> None:
        """Raise ModelNotFound unless new requests may name the adapter of this id."""
        if name and all(adapter.id != name for adapter in list(self.served.values())):
            raise ModelNotFound(f"The adapter {name.rpartition('@')[0]!r} has just been unloaded.")

    async def load(self, adapter: Adapter) -> None:
        """Serve it from now on, when all workers that are there have it.

        Raises InvalidRequest when there is one of its name, PitstopError with a worker's reason when one cannot have it: then nobody has.
        """
        if adapter.name in self.served or any(adapter.name == other.name for other in self._coming.values()):
            raise InvalidRequest(f"name: an adapter {adapter.name!r} is there already; DELETE it first", "name", "adapter_exists")
        if self._leaving.pop(adapter.id, None) is None:  # else it comes back before it has gone
            self._coming[adapter.id] = adapter
            try:
                await self._spread(adapter)
            except BaseException:
                del self._coming[adapter.id]
                self._tell_all(adapter)
                raise
            del self._coming[adapter.id]
        self.served[adapter.name] = adapter
        self.since[adapter.name] = int(time.time())
        log.info("adapter %s is served", adapter.id)

    def unload(self, name: str) -> Adapter:
        """Serve no new requests with it; it goes when those in flight have ended. Raises ModelNotFound."""
        adapter = self.served.pop(name, None)
        if adapter is None:
            raise ModelNotFound(f"There is no adapter {name[:200]!r}.")
        log.info("adapter %s is no longer served", adapter.id)
        self._leaving[adapter.id] = adapter
        self.ended(adapter.id)
        return adapter

    def ended(self, name: str) -> None:
        """A request with the adapter of this id has ended."""
        if name in self._leaving and not any(entry.request.adapter == name for entry in self._entries.values()):
            self._tell_all(self._leaving.pop(name))

    def failed(self, member: Member) -> str:
        """Why a worker that has started lacks an adapter that it should have; "" when it has all."""
        wanted = {adapter.id for adapter in self.all()}
        errors = [state.error for state in member.facts.adapters if state.error and state.id in wanted]
        return errors[0] if errors else ""

    def give_up(self, member: Member) -> None:
        """A worker has started. What it could not load, and nobody else has, is served no more: its file is not what it was."""
        for state in member.facts.adapters:
            if not state.error or any(state.id in other.adapters.ready for other in self._members):
                continue
            self._leaving.pop(state.id, None)
            for adapter in [adapter for adapter in self.served.values() if adapter.id == state.id]:
                log.error("adapter %s cannot be loaded again and is no longer served: %s", adapter.name, state.error)
                del self.served[adapter.name]

    def lost(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those of the entries whose adapter no worker will have again."""
        known = {"", *(adapter.id for adapter in self.all())}
        return [entry for entry in entries if entry.request.adapter not in known]

    async def _spread(self, adapter: Adapter) -> None:
        """To all workers. One that starts meanwhile has it from its start."""
        waiting = [member.load_adapter(adapter) for member in self._members if member.up]
        try:
            async with asyncio.timeout(LOAD_TIMEOUT):
                results = await asyncio.gather(*waiting, return_exceptions=True)
        except TimeoutError:
            raise DeadlineExceeded(f"the workers did not load {adapter.name} within {LOAD_TIMEOUT:g} s") from None
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, WorkerDied):
                raise InvalidRequest(f"path: {result}", "path") from result
        if all(isinstance(result, WorkerDied) for result in results):
            raise Unavailable("no worker is there to load the adapter; try again")

    def _tell_all(self, adapter: Adapter) -> None:
        """Unload it everywhere."""
        for member in self._members:
            member.unload_adapter(adapter)
