"""From configuration to a running server, and back down: bind, load, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import uvicorn
import uvloop

from pitstop.config import Adapter, EngineConfig, PoolConfig, ServerConfig
from pitstop.engine.protocol import Ready
from pitstop.errors import ConfigError, InvalidRequest
from pitstop.pool import Opened, Pool, Process, Upgrades, read_model
from pitstop.pool.worker import WORKER_COMMAND
from pitstop.server.app import create_app
from pitstop.server.connection import RESERVE, Connection
from pitstop.server.embeddings import check_pooling
from pitstop.server.record import name_requests_in_logs
from pitstop.server.service import Service
from pitstop.server.tls import tls_context
from pitstop.server.tracing import Tracing

log = logging.getLogger(__name__)

_DEAD_PEERS = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""A client that vanished without a word is noticed within a minute, silent or being sent to (seconds; the last in milliseconds)."""

_SEND_BUFFER = 128 << 10
"""Bytes (the kernel doubles it) of an answer that wait in the kernel for a client; by itself it would let that grow to megabytes each."""

_OTHER_HANDLES = 256  # open files beside connections

_CLOSE_TIMEOUT = 5  # seconds that a client gets to take the end of an answer, after the drain


def run(
    server: ServerConfig,
    pool: PoolConfig,
    engine: EngineConfig,
    on_ready: Callable[[Ready], None] | None = None,
    first: Process | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a clean stop.

    The port is bound first: while the model loads, /livez answers and /readyz says 503. `on_ready` is called when requests are taken.
    The first signal drains, as POST /admin/drain does: readiness 503, no new requests, streams finish. A second one stops at once.
    Raises ConfigError (port in use, the worker's reason not to start), WeightsError or Unsupported.
    """
    return uvloop.run(Runner(server, pool, engine, first=first).run(read_model, on_ready))


class Runner:
    """One life of the server process."""

    def __init__(
        self,
        server: ServerConfig,
        pool: PoolConfig,
        engine: EngineConfig,
        command: Sequence[str] = WORKER_COMMAND,
        first: Process | None = None,
    ) -> None:
        self._config = server
        self._pool_config = pool
        self._engine = engine
        self._command = command
        self._first = first
        self._service = Service(server)
        self._pool: Pool | None = None
        self._signals = 0
        self._checking: asyncio.Task[None] | None = None

    async def run(self, read: Callable[[str], Opened], on_ready: Callable[[Ready], None] | None = None) -> int:
        """read: opens a model's file, on a thread."""
        name_requests_in_logs()
        _allow_handles(self._config.limits.max_connections + RESERVE + _OTHER_HANDLES)
        config = _uvicorn_config(create_app(self._service), self._config, self._service.metrics.rejected)
        if self._config.otel:
            self._service.tracing = Tracing()
        listener = listen(self._config.host, self._config.port)
        self.port: int = listener.getsockname()[1]
        log.info("listening on %s://%s:%d", self._config.scheme, self._config.host, self.port)
        self._web = _Server(config)
        serving = asyncio.create_task(self._web.serve([listener]))
        stopping = asyncio.create_task(self._service.stopping.wait())
        loading = asyncio.create_task(self._load(read, on_ready))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        try:
            await asyncio.wait({loading, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()  # raises what kept the model from loading
            await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loading.cancel()
            stopping.cancel()
            await asyncio.gather(loading, stopping, return_exceptions=True)
            if self._pool is not None:
                await self._service.upgrades.close()
                await self._pool.drain()
                if self._checking is not None:
                    self._checking.cancel()
                await self._pool.close()
            self._web.should_exit = True
            await serving
            if self._service.tracing is not None:
                await asyncio.to_thread(self._service.tracing.close)
        return 0

    async def _load(self, read: Callable[[str], Opened], on_ready: Callable[[Ready], None] | None) -> None:
        opened = await asyncio.to_thread(read, self._engine.model)
        adapters = await asyncio.to_thread(lambda: tuple(map(self._read_adapter, self._engine.adapters)))
        engine = replace(self._engine, adapters=adapters)
        self._pool = Pool(self._pool_config, engine, opened.texts, self._service.metrics, self._command, self._first)
        self._service.open(self._pool, Upgrades(self._pool, read))
        facts = await self._pool.start()
        check_pooling(self._config.pooling, opened.texts.embedding, facts)
        self._service.started = True
        if on_ready is not None:
            on_ready(facts)
        self._checking = asyncio.create_task(self._service.health.run(self._pool), name="health")

    def _read_adapter(self, adapter: Adapter) -> Adapter:
        """One that is to be there from the start. Raises ConfigError."""
        try:
            return self._service.read_adapter(adapter.name, adapter.path, self._engine.model)
        except InvalidRequest as error:
            raise ConfigError(f"--lora {adapter.name}={adapter.path}: {error}") from error

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals > 1:  # not one that follows POST /admin/drain, as a supervisor's does
            log.warning("stopping at once")
            self._web.force_exit = True
            if self._pool is not None:
                self._pool.kill()
        else:
            log.info("draining: no new requests; a second signal stops at once")
            self._service.stopping.set()


def _allow_handles(need: int) -> None:
    """Raise the soft limit on open files where it is lower. Raises ConfigError when the hard limit is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < need:
        raise ConfigError(f"--max-connections: {need} open files are needed and {hard} allowed; lower it, or raise `ulimit -Hn`")
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def listen(host: str, port: int) -> socket.socket:
    """A bound, listening socket. Raises ConfigError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
        # Connections inherit it. asyncio forgets it for such a socket, and each answer's body would wait 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        for name, value in _DEAD_PEERS.items():
            if hasattr(socket, name):
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return listener
    except OSError as error:
        reason = os.strerror(error.errno) if (error.errno or 0) > 0 else error.strerror  # name lookup has numbers of its own
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another --host or --port") from error


def _uvicorn_config(app, config: ServerConfig, rejected: dict[str, int]) -> uvicorn.Config:
    """Raises ConfigError for a certificate that cannot be used."""
    context = tls_context(config.tls) if config.tls is not None else None
    return uvicorn.Config(
        app,
        http=partial(Connection, limits=config.limits, rejected=rejected),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(config.keep_alive),
        timeout_graceful_shutdown=_CLOSE_TIMEOUT,
        ssl_context_factory=(lambda *_: context) if context is not None else None,
    )


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the Runner's: uvicorn would close the port first and drain afterwards."""
        yield
