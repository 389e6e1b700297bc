"""Is the client fast enough to judge? It is measured against a server that answers at once, at twice the planned rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pitstop.stats.intervals import rank_percentile
from pitstop.verify.load.arrivals import Schedule, arrivals
from pitstop.verify.load.driving import drive
from pitstop.verify.load.mix import Mix
from pitstop.verify.load.null_server import null_server
from pitstop.verify.load.records import Dialect, Job, Record, Summary, Work
from pitstop.verify.load.texts import Prompts
from pitstop.verify.slo import LoadLimits

SHARE = 0.1
"""Of the tightest latency limit that the client's own p99 may take."""
BUSY = 0.8
"""Of a core that the client may use: it has only one."""
BEYOND = 2.0
"""Times the planned rate at which the client must do well."""
NO_LIMIT_MS = 1000.0
REQUESTS = (20, 2000)
SECONDS = (2.0, 6.0)
CHARACTERS_PER_TOKEN = 4.0
HOPELESS = 2.0
"""Seconds of lateness after which no more need be seen."""


@dataclass(frozen=True)
class Needs:
    """What a run asks of the client: its rate, or its clients where the loop is closed; `allowed`: milliseconds at p99."""

    rate: float
    clients: int
    allowed: float

    @classmethod
    def of(cls, schedule: Schedule, limits: LoadLimits) -> Needs:
        latencies = (limits.e2e_p95_ms, limits.within_ms, limits.ttft_p95_ms)
        allowed = SHARE * min((limit for limit in latencies if limit), default=NO_LIMIT_MS)
        if schedule.process != "trace" or schedule.clients:
            return cls(schedule.rate, schedule.clients, allowed)
        due = schedule.due(0)
        busiest = max(np.searchsorted(due, due + 1.0) - np.arange(len(due)))  # arrivals within a second
        return cls(float(busiest), 0, allowed)


@dataclass(frozen=True)
class Headroom:
    """The client alone. `p99`: milliseconds from the intended time to the end at a null server; `refusal`: why it cannot judge, or ""."""

    needs: Needs
    p99: float
    busy: float
    achieved: float  # requests/s
    refusal: str = ""

    def covers(self, needs: Needs) -> bool:
        return (
            not self.refusal
            and needs.clients == self.needs.clients
            and needs.rate <= self.needs.rate
            and needs.allowed >= self.needs.allowed
        )


def measure_client(needs: Needs, mix: Mix, source: str) -> Headroom:
    """Some seconds against a null server, with the mix's own sizes."""
    rate = BEYOND * needs.rate
    count = int(np.clip(rate * SECONDS[0], *REQUESTS))
    count = min(count, max(int(rate * SECONDS[1]), 10))  # slow rates: few requests rather than minutes
    due = np.zeros(count) if needs.clients else arrivals("poisson", rate, count / rate, 0, count)
    prompts = Prompts(source, 0, None, CHARACTERS_PER_TOKEN)
    shapes = mix.draw(count, 0)
    jobs = [Job(i, float(at), s.name, prompts.take(s.prompt), s.answer) for i, (at, s) in enumerate(zip(due, shapes, strict=True))]
    with null_server() as url:
        work = Work(
            url=url, headers={}, model="null", dialect=Dialect(), jobs=jobs, warmup=jobs[:3], clients=needs.clients, timeout=HOPELESS
        )
        records, summary = drive(work, lambda record: bool(record.error) or record.end - record.intended > HOPELESS)
    return _judge(needs, records, summary)


def _judge(needs: Needs, records: list[Record], summary: Summary | None) -> Headroom:
    p99 = 1000 * rank_percentile([record.end - record.intended for record in records], 99)
    achieved = len(records) / max(record.end for record in records)
    busy = summary.busy if summary else 1.0
    if needs.clients:
        return Headroom(needs, p99, busy, achieved)  # how fast it can go; judged beside what the server did
    failed = next((record.error for record in records if record.error), "")
    refusal = ""
    if summary is None or p99 > needs.allowed:
        refusal = (
            f"REFUSED: the client is the bottleneck. Against a server that answers at once, at {BEYOND:g} × {needs.rate:.4g} requests/s, "
            f"it took {p99:.0f} ms at p99{f' ({failed})' if failed else ''}; {needs.allowed:.0f} ms are allowed, {SHARE:.0%} of the "
            f"tightest limit. Load with less, or from a faster machine"
        )
    return Headroom(needs, p99, busy, achieved, refusal)


def refusal_in_run(headroom: Headroom, records: list[Record], summary: Summary | None) -> str:
    """Why the client was too slow during the run itself, where it may have to share cores with the server; or ""."""
    if headroom.refusal:
        return headroom.refusal
    if headroom.needs.clients:
        done = len(records) / max((record.end for record in records), default=1.0)
        if done * BEYOND > headroom.achieved:
            return f"REFUSED: the client is the bottleneck: it did {done:.0f} requests/s, and {headroom.achieved:.0f} at a null server"
    late = 1000 * rank_percentile([record.sent - record.intended for record in records], 99) if records else 0.0
    if late > headroom.needs.allowed:
        return f"REFUSED: the client was late by {late:.0f} ms at p99 during the run; {headroom.needs.allowed:.0f} ms are allowed"
    if summary and summary.busy > BUSY:
        return f"REFUSED: the client used {summary.busy:.0%} of a core during the run; {BUSY:.0%} are allowed"
    if summary and summary.requests != len(records):
        return f"REFUSED: Locust counted {summary.requests} requests, {len(records)} were recorded"
    return ""
