"""The highest rate that meets the limits: doubling or halving to a bracket, bisection of the logarithm, and a second run to confirm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pitstop.errors import ConfigError
from pitstop.stats.intervals import needed_without_miss, share_at_least
from pitstop.verify.load.figures import compute
from pitstop.verify.load.judge import check_client, check_limits
from pitstop.verify.load.records import Record
from pitstop.verify.load.session import Measured, Session, at_rate
from pitstop.verify.outcome import Table
from pitstop.verify.slo import LoadLimits

PRECISION = 0.1
"""How near, relative, the lowest rate that failed lies to the highest that passed at the end."""
LOWEST = 0.02
"""Requests/s below which no rate is sought."""


@dataclass(frozen=True)
class Probe:
    """One run of a search. `reasons`: the checks that failed; `requests` may be fewer than planned when it was stopped early."""

    rate: float
    passed: bool
    requests: int
    within: int
    reasons: list[str]

    def as_json(self) -> dict:
        return {field: getattr(self, field) for field in self.__dataclass_fields__}


@dataclass
class Search:
    """Which rate to try next. Feed it what came of each; it ends when a rate has passed twice, or none passes at all."""

    rate: float
    limits: LoadLimits
    probes: list[Probe] = field(default_factory=list)
    passed: float | None = None  # the highest rate that did
    failed: float | None = None  # the lowest that did not
    confirming: bool = False
    found: float | None = None
    ended: bool = False

    def add(self, probe: Probe) -> None:
        """The result of a run at `self.rate`; then `rate` is the next to try, unless `ended`."""
        self.probes.append(probe)
        if self.confirming:
            self._confirm(probe)
            return
        if probe.passed:
            self.passed = max(self.passed or 0.0, self.rate)
        else:
            self.failed = min(self.failed or math.inf, self.rate)
        if self.passed is None:
            self.rate /= 2
        elif self.failed is None:
            self.rate *= 2
        elif self.failed > self.passed * (1 + PRECISION):
            self.rate = math.sqrt(self.passed * self.failed)
        else:
            self.rate, self.confirming = self.passed, True
        self.ended = self.rate < LOWEST

    def _confirm(self, probe: Probe) -> None:
        if probe.passed:
            if sum(earlier.passed and earlier.rate == self.rate for earlier in self.probes) > 1:
                self.found, self.ended = self.rate, True
            return
        self.failed = self.rate
        self.rate /= 1 + PRECISION
        self.ended = self.rate < LOWEST

    @property
    def statement(self) -> str:
        """What was found and how sure it is, for a reader."""
        if self.found is None:
            why = "; ".join(self.probes[-1].reasons)
            return f"no rate down to {max(self.rate, LOWEST):.3g} requests/s met the limits; the last failed by {why}"
        runs = [probe for probe in self.probes if probe.rate == self.found and probe.passed]
        requests, within = sum(probe.requests for probe in runs), sum(probe.within for probe in runs)
        above = [probe for probe in self.probes if probe.rate == self.failed]
        failed = f"{self.failed:.3g}/s did not: {above[-1].reasons[0]}" if above and above[-1].reasons else "none higher was tried"
        text = f"{self.found:.3g} requests/s met all limits in {len(runs)} runs of {requests} requests together; {failed}"
        share = self.limits.within_share
        if share and self.limits.within_ms is not None:
            proven = share_at_least(within, requests)
            text += f". {within} of {requests} ended within {self.limits.within_ms:g} ms, which proves {proven:.3%} with 95 % confidence"
            if proven < share < 1:
                text += f"; to prove {share:.3%} takes {needed_without_miss(share)} requests without a miss"
        return text


def find_max(session: Session) -> tuple[Search, Measured]:
    """Run until the search ends: the search, and its last run, which confirmed the rate or failed. Raises ConfigError for a closed loop
    or a trace."""
    schedule = session.plan.schedule
    if schedule.clients or schedule.process == "trace":
        raise ConfigError("the highest rate is sought in an open loop of poisson, constant or ramp arrivals")
    search = Search(schedule.rate, session.limits)
    last = None
    while not search.ended:
        measured = step(session, search)
        if measured.records or last is None:
            last = measured
    return search, last


def step(session: Session, search: Search) -> Measured:
    """The next run of a search, stopped as soon as it is sure to fail. A rate that the client cannot judge is not met."""
    schedule = at_rate(session.plan.schedule, search.rate)
    planned = len(schedule.due(0))
    measured = session.measure(schedule, hopeless(session.limits, planned))
    checks, within = [check_client(measured)], 0
    if measured.records:
        figures = compute(measured, session.limits)
        checks += check_limits(figures, session.limits)
        within = figures.within
    reasons = [check.reason for check in checks if not check.passed]
    passed = not reasons and measured.summary is not None
    search.add(Probe(search.rate, passed, len(measured.records), within, reasons))
    return measured


def hopeless(limits: LoadLimits, planned: int) -> Callable[[Record], bool]:
    """A watch that says True once more requests have missed a limit than may of all that are planned, with room for a few more."""
    late, slow = 0, 0
    may_miss = math.inf if limits.within_ms is None or limits.within_share is None else (1 - limits.within_share) * planned
    may_lag = math.inf if limits.e2e_p95_ms is None else 0.05 * planned

    def watch(record: Record) -> bool:
        nonlocal late, slow
        took = math.inf if record.error else 1000 * (record.end - record.intended)
        late += took > (limits.within_ms or math.inf)
        slow += took > (limits.e2e_p95_ms or math.inf)
        return late > may_miss + 5 or slow > 1.2 * may_lag + 5

    return watch


def probes_table(search: Search) -> Table:
    rows = [
        [f"{probe.rate:.3g}", "met" if probe.passed else "missed", str(probe.requests), "; ".join(probe.reasons)] for probe in search.probes
    ]
    return Table(title="Rates tried", columns=["requests/s", "limits", "requests", "why"], rows=rows)
