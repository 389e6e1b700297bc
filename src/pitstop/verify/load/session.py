"""Runs against one server: its abilities asked once, prompts never used twice, the client measured first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from pitstop.verify.load.arrivals import Schedule
from pitstop.verify.load.driving import drive
from pitstop.verify.load.headroom import Headroom, Needs, measure_client
from pitstop.verify.load.mix import PRESETS, Mix
from pitstop.verify.load.probe import probe
from pitstop.verify.load.records import Job, Record, Summary, Work
from pitstop.verify.load.texts import Prompts, read_source
from pitstop.verify.slo import LoadLimits
from pitstop.verify.target import Target

WARMUP = 4
"""Requests of the commonest shape before a run, beside one of each shape."""

Show = Callable[[str, int, int], None]
"""Progress: what is done now, how much of it, of how much."""


@dataclass(frozen=True)
class Plan:
    """A load. `timeout` in seconds, from a request's sending to its end; `text`: a file of real text for the prompts."""

    mix: Mix = PRESETS["small"]
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 0
    timeout: float = 60.0
    text: Path | None = None


@dataclass(frozen=True)
class Measured:
    """One run as it came; `summary` is None when it was stopped before its end."""

    schedule: Schedule
    planned: int
    records: list[Record]
    summary: Summary | None
    headroom: Headroom

    @property
    def seconds(self) -> float:
        """From the start until the last answer ended."""
        return max((record.end for record in self.records), default=0.0)


class Session:
    """A server under load, as a context. Raises TargetError when it cannot be measured, ConfigError for a senseless plan."""

    def __init__(self, target: Target, limits: LoadLimits, plan: Plan, show: Show) -> None:
        self.target, self.limits, self.plan = target, limits, plan
        self._show = show
        self._source = read_source(plan.text)
        self._headroom: Headroom | None = None
        self._runs = 0

    def __enter__(self) -> Session:
        self._http = self.target.client()
        self._show("asking what the server takes", 0, 0)
        self.abilities = probe(self.target, self._http, self._source, self.plan.timeout)
        self._prompts = Prompts(self._source, self.plan.seed, self.abilities.count, self.abilities.characters_per_token)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._http.close()

    def client(self, schedule: Schedule) -> Headroom:
        """The client alone under this schedule; an earlier, harder measurement will do."""
        needs = Needs.of(schedule, self.limits)
        if self._headroom is None or not self._headroom.covers(needs):
            self._show("measuring the client against a null server", 0, 0)
            self._headroom = measure_client(needs, self.plan.mix, self._source)
        return self._headroom

    def measure(self, schedule: Schedule, watch: Callable[[Record], bool] | None = None) -> Measured:
        """One run with new prompts; without records when the client is too slow for it."""
        due = schedule.due(self.plan.seed + self._runs)
        headroom = self.client(schedule)
        if headroom.refusal:
            return Measured(schedule, len(due), [], None, headroom)
        shapes = self.plan.mix.draw(len(due), self.plan.seed + self._runs)
        self._runs += 1
        warm = [*self.plan.mix.requests, *[max(self.plan.mix.requests, key=lambda shape: shape.share)] * WARMUP]
        jobs = []
        for number, (at, shape) in enumerate(zip((*[0.0] * len(warm), *due), (*warm, *shapes), strict=True)):
            if number % 20 == 0:
                self._show("cutting prompts", number, len(warm) + len(shapes))
            jobs.append(Job(number - len(warm), float(at), shape.name, self._prompts.take(shape.prompt), shape.answer))
        work = self._work(schedule, jobs[: len(warm)], jobs[len(warm) :])
        done = 0

        def seen(record: Record) -> bool:
            nonlocal done
            done += 1
            self._show(describe(schedule), done, len(due))
            return watch is not None and watch(record)

        self._show(describe(schedule), 0, len(due))
        records, summary = drive(work, seen)
        return Measured(schedule, len(due), records, summary, headroom)

    def _work(self, schedule: Schedule, warmup: list[Job], jobs: list[Job]) -> Work:
        return Work(
            url=self.target.url,
            headers=self.target.headers,
            model=self.target.model,
            dialect=self.abilities.dialect,
            jobs=jobs,
            warmup=warmup,
            clients=schedule.clients,
            seconds=schedule.seconds,
            timeout=self.plan.timeout,
        )


def describe(schedule: Schedule) -> str:
    if schedule.clients:
        return f"closed loop, {schedule.clients} clients"
    return f"trace {schedule.trace}" if schedule.process == "trace" else f"{schedule.process} arrivals, {schedule.rate:.3g}/s"


def at_rate(schedule: Schedule, rate: float) -> Schedule:
    """The same schedule at another rate."""
    return replace(schedule, rate=rate)
