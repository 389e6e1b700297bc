"""Tables and plots of a load run."""

from __future__ import annotations

import numpy as np

from pitstop.verify.load.figures import PERCENTS, Figures
from pitstop.verify.load.judge import show
from pitstop.verify.outcome import Plot, Series, Table
from pitstop.verify.slo import LoadLimits

POINTS = 2000
"""Of a cloud; a longer run is thinned evenly, its slowest hundredth kept."""
STEPS = 400


def tables(figures: dict) -> list[Table]:
    """Latencies and rates of `Figures.as_json`."""
    rows = []
    for name, title in (("e2e_ms", "end to end"), ("ttft_ms", "first token"), ("itl_ms", "between pieces"), ("ms_per_token", "a token")):
        if found := figures[name]:
            rows.append(_row(title, found))
    for kind, found in figures["e2e_ms_by_kind"].items():
        rows.append(_row(f"end to end, {kind}", found))
    columns = ["ms", *[f"p{percent}" for percent in PERCENTS], "95 % interval of p95", "slowest"]
    low, high = figures["goodput_interval"]
    rates = [
        ["requests", f"{figures['requests']} in {figures['seconds']:.1f} s"],
        ["ended well, a second", f"{figures['requests_per_s']:.3g}"],
        ["within all limits, a second", f"{figures['goodput_per_s']:.3g} (95 % interval {low:.3g} to {high:.3g})"],
        ["answer tokens a second", f"{figures['answer_tokens_per_s']:.4g}"],
        ["prompt tokens a second", f"{figures['prompt_tokens_per_s']:.4g}"],
    ]
    rates += [[f"prompt tokens of {kind}", _span(found)] for kind, found in figures["prompt_tokens"].items()]
    rates += [[f"answer tokens of {kind}", _span(found)] for kind, found in figures["answer_tokens"].items()]
    rates += [[f"failed: {kind}", str(count)] for kind, count in figures["errors"].items()]
    return [
        Table(title="Latency from the intended send time", columns=columns, rows=rows),
        Table(title="Throughput", columns=["of the whole run", ""], rows=rates),
    ]


def plots(figures: Figures, limits: LoadLimits) -> list[Plot]:
    """Latency over time, and how each latency is distributed."""
    stated = {"p95": limits.e2e_p95_ms, f"{limits.within_share:.2%}" if limits.within_share else "all": limits.within_ms}
    lines = {name: value for name, value in stated.items() if value is not None}
    found = [
        Plot(
            title="Latency of each request",
            kind="scatter",
            x_label="due, seconds after the start",
            y_label="end to end, ms from the intended time",
            series=_clouds(figures),
            limits=lines,
        )
    ]
    for title, values, drawn in (
        ("End to end", figures.e2e, lines),
        ("Time to first token", figures.ttft, _one("p95", limits.ttft_p95_ms)),
        ("Between pieces of an answer", figures.itl, _one("p95", limits.itl_p95_ms)),
    ):
        if np.isfinite(values).any():
            found.append(
                Plot(
                    title=title,
                    kind="cdf",
                    x_label="ms",
                    y_label="share of requests" if values is not figures.itl else "share of gaps",
                    series=[_distribution(title.lower(), values)],
                    limits=drawn,
                    log_x=True,
                )
            )
    return found


def _clouds(figures: Figures) -> list[Series]:
    found = []
    due = np.array([record.intended for record in figures.records])
    for kind, places in figures.kinds().items():
        x, y = due[places], figures.e2e[places]
        ended = np.isfinite(y)
        x, y = x[ended], y[ended]
        if len(x) > POINTS:
            keep = np.zeros(len(x), bool)
            keep[:: -(-len(x) // POINTS)] = True
            keep[np.argsort(y)[-len(y) // 100 :]] = True
            x, y = x[keep], y[keep]
        found.append(Series(name=kind, x=x.round(3).tolist(), y=y.round(2).tolist()))
    if (failed := ~np.isfinite(figures.e2e)).any():
        ends = np.array([1000 * (record.end - record.intended) for record in figures.records])
        found.append(Series(name="failed", x=due[failed].round(3).tolist(), y=ends[failed].round(2).tolist()))
    return found


def _distribution(name: str, values: np.ndarray) -> Series:
    """Steps of the distribution over all values, those that never ended included: then it ends below 1."""
    ordered = np.sort(values[np.isfinite(values)])
    ranks = np.unique(np.linspace(1, ordered.size, min(STEPS, ordered.size)).astype(int))
    return Series(name=name, x=ordered[ranks - 1].round(3).tolist(), y=(ranks / values.size).round(6).tolist())


def _one(name: str, limit: float | None) -> dict[str, float]:
    return {} if limit is None else {name: limit}


def _cell(value: float | None) -> str:
    return "never" if value is None else show(value)


def _row(title: str, found: dict) -> list[str]:
    low, high = found["p95_interval"]
    interval = f"{'0' if low is None else show(low)} to {'∞' if high is None else show(high)}"
    return [title, *[_cell(found[f"p{percent}"]) for percent in PERCENTS], interval, _cell(found["max"])]


def _span(found: dict) -> str:
    return f"{found['mean']:.1f} ({found['least']} to {found['most']})"
