"""Long series made short for a file that a browser opens at once, without losing what a reader looks for: the extremes."""

from __future__ import annotations

import itertools
import math

import msgspec

from pitstop.verify.outcome import Outcome, Plot, Series

POINTS = 600
"""Most points of a series that are kept."""


def thin(outcome: Outcome) -> Outcome:
    """The same outcome, each plotted series at most POINTS long and to six digits."""
    return msgspec.structs.replace(outcome, plots=[_thin_plot(plot) for plot in outcome.plots])


def _thin_plot(plot: Plot) -> Plot:
    return msgspec.structs.replace(plot, series=[_thin_series(series) for series in plot.series])


def _thin_series(series: Series) -> Series:
    kept = keep(series.y, POINTS)
    return Series(name=series.name, x=[_short(series.x[i]) for i in kept], y=[_short(series.y[i]) for i in kept])


def keep(values: list[float | None], points: int) -> list[int]:
    """Indices, ascending, of at most `points` values: both ends, and of each of equal stretches between the least and the greatest.

    A stretch without any number keeps one gap.
    """
    count = len(values)
    if count <= points:
        return list(range(count))
    stretches = points // 2 - 1
    edges = [1 + (count - 2) * i // stretches for i in range(stretches + 1)]
    kept = {0, count - 1}
    for start, end in itertools.pairwise(edges):
        numbers = [i for i in range(start, end) if values[i] is not None and math.isfinite(values[i])]
        kept |= {min(numbers, key=values.__getitem__), max(numbers, key=values.__getitem__)} if numbers else {start}
    return sorted(kept)


def _short(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
