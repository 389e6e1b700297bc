"""What the routes share: the served model's texts, the pool, the metrics, and a few threads for everything that is not waiting."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from pitstop.config import Adapter, ServerConfig
from pitstop.errors import ModelNotFound, Unavailable
from pitstop.pool import Pool, Upgrades, read_adapter
from pitstop.server.canary import Health
from pitstop.server.keys import Keys
from pitstop.server.metrics import Metrics
from pitstop.server.record import Record
from pitstop.server.tracing import Tracing

P, R = ParamSpec("P"), TypeVar("R")

_THREADS = 2


class Service:
    """One per app. Until `open` was called the service is loading."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.created = int(time.time())
        self.health = Health(config.health)
        self.metrics = Metrics(config.model_name, lambda: self._pool, self.health, lambda: self.state)
        self.keys = Keys(config.api_keys, config.max_per_key, self.metrics.rejected)
        self.stopping = asyncio.Event()
        """Set once: no new requests from then on. A signal or POST /admin/drain sets it."""
        self.tracing: Tracing | None = None
        self.upgrades: Upgrades | None = None
        self.read_adapter: Callable[[str, str, str], Adapter] = read_adapter
        """(name, path, path of the model); raises InvalidRequest naming the field. Runs on a thread."""
        self.started = False  # weights were loaded, kernels warm, the guard done: once and for ever
        self._pool: Pool | None = None
        self._threads = ThreadPoolExecutor(_THREADS, "door")

    def open(self, pool: Pool, upgrades: Upgrades | None = None) -> None:
        self._pool, self.upgrades = pool, upgrades

    @property
    def state(self) -> str:
        """loading, ready, restarting, draining or stopped."""
        state = self._pool.state if self._pool is not None else "loading"
        return "draining" if self.stopping.is_set() and state != "stopped" else state

    @property
    def full(self) -> bool:
        """Whether the next request would be refused for want of a place in the queue."""
        return self._pool is not None and self._pool.journal.waiting >= self._pool.config.max_waiting

    @property
    def context(self) -> int | None:
        """Longest prompt + answer in tokens; None while that is not known."""
        return self._pool.facts.context if self._pool is not None and self._pool.facts is not None else None

    def ready_pool(self) -> Pool:
        """The pool, able to take a request. Raises Unavailable."""
        if self._pool is None:
            raise Unavailable("The model is still loading; try again shortly.")
        self._pool.check_available()
        return self._pool

    @property
    def adapters(self) -> dict[str, Adapter]:
        """LoRA adapters by name: models that requests may name beside the served one."""
        return self._pool.adapters.served if self._pool is not None else {}

    def since(self, name: str) -> int:
        """When the model of this name came, in seconds since 1970."""
        return self._pool.adapters.since[name] if name != self.config.model_name else self.created

    def check_model(self, name: str | None) -> str:
        """The id of the adapter of this name, "" for the served model and for None. Raises ModelNotFound."""
        if name is None or name == self.config.model_name:
            return ""
        if (adapter := self.adapters.get(name)) is None:
            raise ModelNotFound(f"The model {name[:200]!r} is not served here; GET /v1/models lists those that are.")
        return adapter.id

    def name_of(self, adapter: str) -> str:
        """What a request that goes to the adapter of this id, "" for none, names as its model."""
        return adapter.rpartition("@")[0] or self.config.model_name

    async def think(self, work: Callable[P, R], *args: P.args) -> R:
        """Run `work` on one of a few threads, so that the event loop goes on."""
        context = contextvars.copy_context()  # so that what it logs names the request
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, work, *args)

    def finished(self, about: Record) -> None:
        """Account for a request whose answer is out."""
        about.log()
        if self.tracing is not None:
            self.tracing.export(about)


def service_of(request: Request) -> Service:
    return request.app.state.service
