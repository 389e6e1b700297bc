"""Outcomes as tiers return them, made up."""

from __future__ import annotations

import math

from pitstop.verify.outcome import Check, Outcome, Plot, Report, Series, Table

OURS = {"url": "http://127.0.0.1:8000", "server": "Pitstop 0.1.0", "model": "toy"}
THEIRS = {"url": "http://127.0.0.1:8080", "server": "llama.cpp", "model": "other"}
HOSTILE = "<script>alert('x')</script>]]></style>\"'&amp;$\\frac{1}{0}$\x00\x1b[31m\ud7ff\U0001f600\u202e http://evil.example/x"


def check(name: str = "load.e2e_p95_ms", passed: bool = True, reason: str = "512 ms", **fields) -> Check:
    return Check(name=name, passed=passed, reason=reason, **fields)


def outcome(tier: str = "load", target: dict[str, str] = OURS, **fields) -> Outcome:
    fields = {"checks": [check(f"{tier}.thing")]} | fields
    return Outcome(tier=tier, target=target, started=1.8e9, seconds=12.5, seed=3, **fields)


def report(*outcomes: Outcome) -> Report:
    machine = {"CPU": "a processor", "cores": "2 usable"}
    return Report(command=["pitstop verify http://127.0.0.1:8000"], machine=machine, versions={"pitstop": "0.1.0"}, outcomes=list(outcomes))


def plot(kind: str = "line", names: tuple[str, ...] = ("one",), points: int = 50, **fields) -> Plot:
    series = [
        Series(name=name, x=[float(i + 1) for i in range(points)], y=[(i + shift) / (points + shift) for i in range(points)])
        for shift, name in enumerate(names)
    ]
    return Plot(**({"title": f"A {kind}", "kind": kind, "x_label": "s", "y_label": "ms", "series": series} | fields))


def every_kind(target: dict[str, str] = OURS) -> Outcome:
    """Every kind of plot, limits inside and out, a gap, few and many points, tables with and without rows."""
    gap = Series(name="gap", x=[0.0, 1.0, 2.0, 3.0], y=[1.0, None, math.nan, 2.0])
    plots = [
        plot("line", limits={"allowed": 0.5, "far": 1e6, "none": None}),
        plot("line", series=[gap], title="Gaps"),
        plot("scatter", ("one", "two", "three"), 2000, limits={"allowed": 0.5}),
        plot("cdf", log_x=True, limits={"at 10": 10.0, "zero": 0.0}),
        plot("bar", ("one", "two"), 5),
    ]
    tables = [
        Table(title="Figures", columns=["what", "ms"], rows=[["end", "12.5"], ["first", "–"]]),
        Table(title="Errors", columns=["kind", "count"], rows=[]),
        Table(title="Long", columns=["n"], rows=[[str(i)] for i in range(100)]),
    ]
    checks = [check(value=512.0, limit=700.0), check("load.error_share", value=0.0, limit=0.0), check("load.other")]
    return outcome(target=target, checks=checks, plots=plots, tables=tables, notes=["A note."], figures={"p95": 512.0, "list": [1, None]})


HUGE = outcome(
    checks=[check("load.huge", False, value=1e300, limit=-1e300), check("load.unknown", value=math.nan, limit=math.inf)],
    plots=[
        plot(series=[Series(name="huge", x=[0.0, 1.0, 2.0], y=[1e300, -1e300, 1.0])]),
        plot(series=[Series(name="wide", x=[-1e99, 0.0, 1e99], y=[-1e99, 1e-300, 1e99])]),
        plot(series=[Series(name="none", x=[0.0, 1.0], y=[None, math.inf])], title="Nothing"),
        plot(series=[], title="No series"),
        plot(series=[Series(name="empty", x=[], y=[])], title="Empty"),
        plot(series=[Series(name="point", x=[5.0], y=[5.0])], title="One point", limits={"nan": math.nan, "inf": math.inf}),
        plot("cdf", series=[Series(name="negative", x=[-1.0, 0.0], y=[0.5, 1.0])], log_x=True, title="No logarithm"),
        plot("bar", series=[Series(name="zero", x=[1.0, 1.0], y=[0.0, 0.0])], title="Zeros"),
    ],
)

HOSTILE_TARGET = {"url": f"http://{HOSTILE}", "server": HOSTILE, "model": HOSTILE}
HOSTILE_OUTCOME = outcome(
    target=HOSTILE_TARGET,
    checks=[check(HOSTILE, False, HOSTILE, value=1.0, limit=2.0), check("load.x", True, HOSTILE)],
    tables=[Table(title=HOSTILE, columns=[HOSTILE, "b"], rows=[[HOSTILE, "1"], [HOSTILE]])],
    plots=[
        plot("line", (HOSTILE, "two"), title=HOSTILE, x_label=HOSTILE, y_label=HOSTILE, limits={HOSTILE: 0.5}),
        plot("bar", (HOSTILE,), 3),
    ],
    notes=[HOSTILE],
    figures={HOSTILE: HOSTILE},
)
