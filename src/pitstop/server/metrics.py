"""Prometheus metrics. Gauges and totals are read from the pool when they are scraped, so that they are exact at that moment."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from pitstop import __version__
from pitstop.kv.capacity import Capacity
from pitstop.pool import Gauges, Pool
from pitstop.server import processes
from pitstop.server.canary import Health
from pitstop.types import FinishReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LATENCY_BUCKETS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 30, 60, 120, 300, 600)
"""Seconds; every limit that people set (0.3, 0.5, 0.7, 1, 2) is one."""

TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 10)

REJECT_REASONS = ("requests", "tokens", "key", "connections", "head", "stalled")

REASONS: tuple[FinishReason, ...] = ("stop", "length", "cancelled", "timeout", "error")


class Metrics:
    """The histograms and HTTP counts of one app, in a registry of their own. It is the pool's Observer."""

    def __init__(self, model_name: str, pool: Callable[[], Pool | None], health: Health, state: Callable[[], str]) -> None:
        """pool: gives the pool when scraped, None while there is none; state: the service's then."""
        self.registry = CollectorRegistry()

        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"pitstop_{name}_seconds", about, buckets=buckets, registry=self.registry)

        self._first = histogram("time_to_first_token", "From a request's arrival to its first token.", LATENCY_BUCKETS)
        self._gap = histogram("inter_token_latency", "Between two steps that brought tokens for one answer.", TOKEN_BUCKETS)
        self._whole = histogram("request_duration", "From a request's arrival to its end, whatever the reason.", LATENCY_BUCKETS)
        self._pause = histogram("request_pause", "For which an answer stood still because its worker had died.", LATENCY_BUCKETS)
        self._responses = Counter("pitstop_http_responses", "HTTP responses sent.", ["route", "status"], registry=self.registry)
        self.rejected: collections.Counter[str] = collections.Counter()  # by reason; the queue's own refusals are the pool's to count
        self.registry.register(_PoolCollector(model_name, pool, self.rejected))
        self.registry.register(_HealthCollector(health, state))
        ProcessCollector(namespace="pitstop", registry=self.registry)

    def first_token(self, seconds: float) -> None:
        self._first.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._gap.observe(seconds)

    def resumed(self, seconds: float) -> None:
        self._pause.observe(seconds)

    def finished(self, reason: FinishReason, seconds: float) -> None:
        self._whole.observe(seconds)

    def response(self, route: str, status: int) -> None:
        self._responses.labels(route, str(status)).inc()

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


class _PoolCollector(Collector):
    def __init__(self, model_name: str, pool: Callable[[], Pool | None], rejected: collections.Counter[str]) -> None:
        self._model_name = model_name
        self._pool = pool
        self._rejected = rejected

    def describe(self) -> list[Metric]:
        return []  # nothing is collected when the collector is registered

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("pitstop_build", "What runs here.", {"version": __version__, "model": self._model_name})
        pool = self._pool()
        state = pool.state if pool is not None else "loading"
        yield _gauge("ready", "1 when requests are taken.", float(state == "ready"))
        yield from processes.families(pool.worker_pids() if pool is not None else [])
        now = pool.gauges() if pool is not None else None
        yield _rejected(self._rejected + collections.Counter(now.rejected if now is not None else {}))
        if now is not None:
            yield from _requests(now)
            yield from _engine(now)
            if pool.facts is not None:
                yield from _capacity(pool.facts.capacity)
            yield _serving(pool)
            adapters = list(pool.adapters.served.values())
            yield _gauge("lora_adapters", "LoRA adapters that requests may name.", len(adapters))
            yield _gauge("lora_adapter_bytes", "Bytes of their matrices, which each worker holds.", sum(each.size for each in adapters))


class _HealthCollector(Collector):
    def __init__(self, health: Health, state: Callable[[], str]) -> None:
        self._health = health
        self._state = state

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield _gauge("healthy", "1 when /healthz says 200.", float(self._health.report(self._state())[0]))
        probes = CounterMetricFamily("pitstop_health_probes", "Questions to workers, by how they were answered.", labels=["outcome"])
        for outcome in ("right", "wrong", "late", "failed"):
            probes.add_metric([outcome], self._health.outcomes[outcome])
        yield probes
        yield _gauge("health_probe_seconds", "How long an idle worker took for the last one.", self._health.last_seconds)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pitstop_{name}", about, value)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"pitstop_{name}", about, value)


def _requests(now: Gauges) -> Iterator[Metric]:
    """Counted in choices: a request with n = 3 is three."""
    stages = GaugeMetricFamily("pitstop_requests", "Requests by stage.", labels=["stage"])
    for stage in ("encoding", "queued", "running"):
        stages.add_metric([stage], getattr(now, stage))
    yield stages
    yield _gauge("requests_running", "Requests that the engine computes.", now.running)
    yield _gauge("requests_waiting", "Requests that wait: being tokenised, or queued.", now.encoding + now.queued)
    yield _counter("requests_accepted", "Requests queued: finished ones + queued + running.", now.accepted)
    finished = CounterMetricFamily("pitstop_requests_finished", "Requests that ended, by reason.", labels=["reason"])
    for reason in REASONS:
        finished.add_metric([reason], now.finished.get(reason, 0))
    yield finished
    yield _gauge("waiting_tokens", "Prompt tokens of requests that have no answer token yet.", now.waiting_tokens)
    yield _gauge("oldest_waiting_seconds", "How long the request that waits longest has waited for its first token.", now.oldest_waiting)
    yield _counter("worker_restarts", "Workers started after the first.", now.restarts)
    yield _gauge("worker_deaths_in_a_row", "Of one worker, without a healthy minute in between.", now.deaths_in_a_row)
    yield _counter("requests_resumed", "Times that a request went on in another worker because its own had died.", now.resumed)


def _rejected(counts: collections.Counter[str]) -> Metric:
    family = CounterMetricFamily("pitstop_requests_rejected", "Refused requests (429) and connections.", labels=["reason"])
    for reason in REJECT_REASONS:
        family.add_metric([reason], counts[reason])
    return family


def _serving(pool: Pool) -> Metric:
    labels = ("kv", "version", "weights", "worker")
    family = GaugeMetricFamily("pitstop_serving", "Workers that get new requests: what each one is.", labels=labels)
    for member in pool.members:
        if member.routed and member.facts is not None:
            facts = member.facts
            family.add_metric([member.config.kv.codec, facts.version, facts.weights, str(member.number)], 1)
    return family


def _capacity(capacity: Capacity) -> Iterator[Metric]:
    for name, about, value in (
        ("capacity_tokens", "Tokens that the KV cache holds when each stream has sequence_length of them.", capacity.tokens),
        ("capacity_ratio", "That, over what the same memory would hold in 16 bits.", capacity.ratio),
    ):
        family = GaugeMetricFamily(f"pitstop_kv_{name}", about, labels=["sequence_length"])
        family.add_metric([str(capacity.length)], value)
        yield family


def _engine(now: Gauges) -> Iterator[Metric]:
    stats = now.stats
    for name, about in (("pages", "Pages of the KV cache: a sealed segment of 128 tokens."), ("tails", "Open segments of the KV cache.")):
        total, free, cached = (getattr(stats, f"{name}_{part}") for part in ("total", "free", "cached"))
        family = GaugeMetricFamily(f"pitstop_kv_{name}", f"{about} By use.", labels=["use"])
        for use, value in (("free", free), ("cached", cached), ("in_use", total - free - cached)):
            family.add_metric([use], value)
        yield family
    about = "Memory that the worker has been given for KV so far: by the system, at the first write, until the pool is full."
    yield _gauge("kv_touched_bytes", about, stats.kv_touched)
    yield _counter("engine_steps", "Steps of the engine.", stats.steps)
    yield _counter("preemptions", "Running requests put back into the queue for lack of memory.", stats.preemptions)
    yield _counter("prompt_tokens_computed", "Prompt tokens computed.", stats.prompt_tokens)
    yield _counter("prompt_tokens_cached", "Prompt tokens taken from the prefix cache.", stats.cached_tokens)
    yield _counter("generated_tokens", "Tokens generated.", stats.generated_tokens)
    yield _counter("guessed_tokens", "Tokens that were guessed and computed ahead (--speculate).", stats.guessed_tokens)
    yield _counter("accepted_tokens", "Of the guessed tokens, those that came.", stats.accepted_tokens)
