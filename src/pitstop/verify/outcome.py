"""What a tier found: checks, figures, tables and plots. Plain data: the JSON report is these structs, the page is drawn from it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

TierName = Literal["functional", "load", "soak", "quality"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that must hold. `reason` is one line for a reader: what was measured, what was allowed, where to look."""

    name: str  # "load.e2e_p95_ms": the tier, then the limit's or the case's name
    passed: bool
    reason: str
    value: float | None = None
    limit: float | None = None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of cells as they are shown."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one line or cloud: x and y of equal length. None, as JSON has NaN, is a gap in a line."""

    name: str
    x: list[float | None]
    y: list[float | None]


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """A chart as data. `limits` are labelled lines across it: on the y axis for "line" and "scatter", on the x axis for "cdf"."""

    title: str
    kind: Literal["line", "scatter", "cdf", "bar"]
    x_label: str
    y_label: str
    series: list[Series]
    limits: dict[str, float | None] = {}
    log_x: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One tier's run against one target. Times: `started` in Unix seconds, `seconds` long."""

    tier: TierName
    target: dict[str, str]  # as target.Target.facts
    started: float
    seconds: float
    seed: int
    checks: list[Check]
    figures: dict[str, Any] = {}  # JSON values, for machines
    tables: list[Table] = []
    plots: list[Plot] = []
    notes: list[str] = []  # what a reader must know to weigh the result

    @property
    def passed(self) -> bool:
        """All checks hold, and there is one: nothing measured is no pass."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run, and how to repeat it: the `command` lines. Several outcomes of a tier are a comparison; the first target is judged."""

    command: list[str]
    machine: dict[str, str]
    versions: dict[str, str]
    outcomes: list[Outcome]

    @property
    def judged(self) -> list[Outcome]:
        """The outcomes of the first target: of one model at one address."""
        return [outcome for outcome in self.outcomes if _place(outcome) == _place(self.outcomes[0])]

    @property
    def passed(self) -> bool:
        return bool(self.outcomes) and all(outcome.passed for outcome in self.judged)


def _place(outcome: Outcome) -> tuple[str | None, str | None]:
    return outcome.target.get("url"), outcome.target.get("model")
