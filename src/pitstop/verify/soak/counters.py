"""What a soak follows, and where each counter is read. A counter that was there and cannot be read is said to be so, never left out."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import httpx

from pitstop.errors import TargetError
from pitstop.verify.soak import exposition, gpus, processes
from pitstop.verify.soak.record import Readings
from pitstop.verify.target import Target

GROWING = ("memory", "handles", "threads", "gpu_memory")
"""Judged by their slopes."""
IDLE = ("running", "waiting", "kv_pages", "kv_tails")
"""Judged by being back where they began whenever nothing runs."""
COUNTED = ("worker_restarts", "server_started", "gpu_ecc", "gpu_ecc_corrected", "gpu_xid", "gpu_links")
"""Judged by their changes."""
HELPERS = ("kv_touched",)
"""Bytes of a pool of fixed size that the process was given so far: taken off its memory."""

METRICS: dict[str, tuple[tuple[str, ...], ...]] = {
    "memory": (('pitstop_process_anonymous_bytes{process="front"}', 'pitstop_process_anonymous_bytes{process="worker"}'),),
    "handles": (('pitstop_process_open_handles{process="front"}', 'pitstop_process_open_handles{process="worker"}'),),
    "threads": (('pitstop_process_threads{process="front"}', 'pitstop_process_threads{process="worker"}'),),
    "kv_touched": (("pitstop_kv_touched_bytes",),),
    "running": (
        ("pitstop_requests_running",),
        ("llamacpp:requests_processing",),
        ("vllm:num_requests_running",),
        ("sglang:num_running_reqs",),
    ),
    "waiting": (
        ("pitstop_requests_waiting",),
        ("llamacpp:requests_deferred",),
        ("vllm:num_requests_waiting",),
        ("sglang:num_queue_reqs",),
    ),
    "kv_pages": (('pitstop_kv_pages{use="in_use"}',), ("vllm:kv_cache_usage_perc",), ("vllm:gpu_cache_usage_perc",)),
    "kv_tails": (('pitstop_kv_tails{use="in_use"}',),),
    "worker_restarts": (("pitstop_worker_restarts_total",),),
    "server_started": (("pitstop_process_start_time_seconds",), ("process_start_time_seconds",)),
}
"""For each counter the names it has in servers' /metrics; of several in one name's place all are needed and summed."""


class Source(Protocol):
    """Where counters are read. `read` raises TargetError."""

    def lacks(self, counter: str) -> str:
        """Why it does not have a counter; "" when it does."""

    def read(self) -> Readings: ...

    def close(self) -> None: ...


class Exposed:
    """The server's own /metrics."""

    def __init__(self, target: Target) -> None:
        self._client = target.client()
        pitstop = target.facts.get("server", "").startswith("Pitstop")
        samples = self._scrape()
        self._names: dict[str, tuple[str, ...]] = {}
        for counter, spellings in METRICS.items():
            for spelling in spellings:
                there = all(exposition.total(samples, name) is not None for name in spelling)
                if there or (pitstop and spelling[0].startswith("pitstop_")):
                    self._names[counter] = spelling
                    break

    def __str__(self) -> str:
        return "/metrics"

    def lacks(self, counter: str) -> str:
        return "" if counter in self._names else "the server's /metrics do not have it"

    def read(self) -> Readings:
        samples = self._scrape()
        readings = {}
        for counter, spelling in self._names.items():
            values = [exposition.total(samples, name) for name in spelling]
            if None not in values:
                readings[counter] = float(sum(values))
        return readings

    def close(self) -> None:
        self._client.close()

    def _scrape(self) -> exposition.Samples:
        try:
            answer = self._client.get("/metrics")
            answer.raise_for_status()
        except httpx.HTTPStatusError as error:
            raise TargetError(f"/metrics answered {error.response.status_code}") from None
        except httpx.HTTPError as error:
            raise TargetError(f"/metrics did not answer: {error or type(error).__name__}") from None
        return exposition.parse(answer.text)


class Reading(NamedTuple):
    values: Readings
    unread: dict[str, str]


class Counters:
    """All that is followed of one server: `followed` says where, `not_followed` why not."""

    def __init__(self, target: Target, pid: int | None) -> None:
        """pid: the server's main process; else it is looked for when the server is on this machine. Raises TargetError."""
        self._sources: list[tuple[Source, tuple[str, ...]]] = []
        self.followed: dict[str, str] = {}
        self.not_followed: dict[str, str] = {}
        tree = processes.find(target.url, pid)
        local = isinstance(tree, processes.Tree)
        self._add(tree, processes.GIVES)
        try:
            exposed: Exposed | str = Exposed(target)
        except TargetError as error:
            exposed = str(error)
        self._add(exposed, tuple(METRICS))
        self._add(gpus.find() if local else "GPUs are followed on this machine only", gpus.GIVES)
        for name in HELPERS:
            self.not_followed.pop(name, None)

    def _add(self, source: Source | str, wanted: tuple[str, ...]) -> None:
        """Follow what of `wanted` nobody else gives. A source may be the reason why there is none."""
        missing = dict.fromkeys(wanted, source) if isinstance(source, str) else {name: source.lacks(name) for name in wanted}
        names = tuple(name for name in wanted if not missing[name] and name not in self.followed)
        if not isinstance(source, str):
            self._sources.append((source, names))
            self.followed |= dict.fromkeys(names, str(source))
        self.not_followed = missing | self.not_followed
        self.not_followed = {name: why for name, why in self.not_followed.items() if name not in self.followed}

    def read(self) -> Reading:
        """All counters now. Takes some 20 ms."""
        values: Readings = {}
        unread: dict[str, str] = {}
        for source, names in self._sources:
            try:
                found = source.read()
            except TargetError as error:
                unread |= dict.fromkeys(names, str(error))
                continue
            values |= {name: found[name] for name in names if name in found}
            unread |= {name: f"{source} did not have it" for name in names if name not in found}
        return Reading(values, unread)

    def close(self) -> None:
        for source, _ in self._sources:
            source.close()
