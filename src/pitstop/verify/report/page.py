"""The report as one HTML page: no script, nothing loaded, everything that came from a server escaped."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from markupsafe import Markup

from pitstop.verify.outcome import Outcome, Plot, Report, Series, Table
from pitstop.verify.report.charts import Chart, draw
from pitstop.verify.report.rows import Row, limit_rows, rows_of, why

HERE = Path(__file__).parent
QUESTIONS = {
    "functional": "Does it do what the API says?",
    "load": "Is it fast enough when many ask?",
    "soak": "Is it still so after a while?",
    "quality": "Are the answers as good?",
}
REASONS = 8
"""So many reasons at the top; the rest stand in their tier's section."""
OPEN_ROWS, OPEN_CHARACTERS = 24, 1000
OVERLAID = 4
"""Lines of several targets share one chart up to so many."""
NUMBER = re.compile(r"[-−+<≤≥]?\s?\d|[–-]$|nan")
Number = Callable[[], int]


@dataclass(frozen=True)
class Run:
    """An outcome and how it is called."""

    label: str
    outcome: Outcome
    started: str
    held: int


@dataclass(frozen=True)
class Tier:
    name: str
    question: str
    runs: list[Run]
    failed: list[Row]
    others: list[Row]
    tables: list[list[tuple[str, Table]]]
    figures: list[list[tuple[str, Chart]]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Of the judged target, which comes first; a tier that only others ran is not judged."""
        return all(run.outcome.passed for run in self.runs if run.label == self.runs[0].label)


def render(report: Report) -> str:
    """The page as HTML text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(HERE)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    names = labels(report.outcomes)
    tiers = _tiers(report.outcomes, names)
    return environment.get_template("page.html").render(
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        report=report,
        labels=list(dict.fromkeys(names)),
        urls=dict(zip(names, report.outcomes, strict=True)),
        failures=[check for outcome in report.judged for check in outcome.failures],
        empty=[outcome.tier for outcome in report.judged if not outcome.checks],
        checks=sum(len(outcome.checks) for outcome in report.judged),
        reasons=REASONS,
        numeric=_numeric,
        folded=_folded,
        why=why,
        limits=[(tier, limit_rows([run.outcome for run in tier.runs])) for tier in tiers],
        tiers=tiers,
        seeds=sorted({outcome.seed for outcome in report.outcomes}),
        date=_date(min((outcome.started for outcome in report.outcomes), default=0)),
    )


def labels(outcomes: list[Outcome]) -> list[str]:
    """A short name for each outcome's target; with its address when two are called alike."""
    addresses: dict[str, set[str]] = {}
    for outcome in outcomes:
        addresses.setdefault(_server(outcome), set()).add(outcome.target.get("url", ""))
    return [
        _server(outcome) if len(addresses[_server(outcome)]) == 1 else f"{_server(outcome)} at {_host(outcome.target.get('url', ''))}"
        for outcome in outcomes
    ]


def _server(outcome: Outcome) -> str:
    return outcome.target.get("server") or "unknown server"


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc or url
    except ValueError:
        return url


def _date(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "unknown time"


def _tiers(outcomes: list[Outcome], names: list[str]) -> list[Tier]:
    numbers = iter(range(1, 1_000_000))
    tiers = []
    for tier in QUESTIONS:
        runs = [
            Run(label, outcome, _date(outcome.started), sum(check.passed for check in outcome.checks))
            for outcome, label in zip(outcomes, names, strict=True)
            if outcome.tier == tier
        ]
        if not runs:
            continue
        rows = rows_of([run.outcome for run in runs])
        tiers.append(
            Tier(
                name=tier,
                question=QUESTIONS[tier],
                runs=runs,
                failed=[row for row in rows if row.failed],
                others=[row for row in rows if not row.failed],
                tables=_by_title((run.label, table) for run in runs for table in run.outcome.tables),
                figures=_figures([(run.label, plot) for run in runs for plot in run.outcome.plots], lambda: next(numbers)),
                notes=_notes(runs),
            )
        )
    return tiers


def _by_title(tables: Iterable[tuple[str, Table]]) -> list[list[tuple[str, Table]]]:
    groups: dict[str, list[tuple[str, Table]]] = {}
    for label, table in tables:
        groups.setdefault(table.title, []).append((label, table))
    return list(groups.values())


def _folded(group: list[tuple[str, Table]]) -> bool:
    """Long tables are opened by who wants them."""
    return any(len(table.rows) > OPEN_ROWS or sum(map(len, itertools.chain(*table.rows))) > OPEN_CHARACTERS for _, table in group)


def _numeric(table: Table) -> list[Markup]:
    """An attribute for each column's cells: those that begin with a number stand to the right. Rows may be longer than the head."""
    width = max(map(len, [table.columns, *table.rows]))
    columns = [[row[place] for row in table.rows if place < len(row) and row[place]] for place in range(width)]
    return [Markup(" class=n") if cells and all(NUMBER.match(cell) for cell in cells) else Markup("") for cells in columns]


def _figures(plots: list[tuple[str, Plot]], number: Number) -> list[list[tuple[str, Chart]]]:
    """Charts of one title together: overlaid when they are few lines, else side by side on equal axes."""
    groups: dict[tuple, list[tuple[str, Plot]]] = {}
    for label, plot in plots:
        groups.setdefault((plot.title, plot.kind, plot.x_label, plot.y_label, plot.log_x), []).append((label, plot))
    figures = []
    for group in groups.values():
        whole = group[0][1] if len(group) == 1 else _overlay(group)
        if len(group) == 1 or (len(whole.series) <= OVERLAID and whole.kind != "scatter"):
            figures.append([("", draw(whole, number()))])
        else:
            figures.append([(label, draw(plot, number(), frame=whole)) for label, plot in group])
    return figures


def _overlay(group: list[tuple[str, Plot]]) -> Plot:
    first = group[0][1]
    limits = {name: value for _, plot in reversed(group) for name, value in plot.limits.items()}
    series = [
        Series(name=label if len(plot.series) == 1 else f"{label}: {line.name}", x=line.x, y=line.y)
        for label, plot in group
        for line in plot.series
    ]
    return Plot(
        title=first.title,
        kind=first.kind,
        x_label=first.x_label,
        y_label=first.y_label,
        series=series,
        limits=limits,
        log_x=first.log_x,
    )


def _notes(runs: list[Run]) -> list[tuple[str, str]]:
    """Each note once, with the targets that it is about when it is not about all."""
    about: dict[str, list[str]] = {}
    for run in runs:
        for note in run.outcome.notes:
            about.setdefault(note, []).append(run.label)
    return [("" if len(labels) == len(runs) else ", ".join(labels), note) for note, labels in about.items()]
