"""Charts as SVG inside the page: drawn by matplotlib in stand-in colours, which become the page's own, so that one drawing suits light,
dark and paper. A line is told from another by its dashes, a point by its shape, a bar by its hatch; colour only helps."""

from __future__ import annotations

import io
import itertools
import math
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from pitstop.verify.outcome import Plot, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (440, 250)
"""Units of the drawing; CSS pixels on a wide screen."""
DASHES = ("", "6 2.5", "1.5 2", "9 2.5 2 2.5", "4 1.5 1 1.5 1 1.5", "2.5 1")
MARKERS = "os^Dv+"
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----")
COLOURS = ("--s1", "--s2", "--s3", "--s4", "--s5", "--s6")
TEXT, FAINT, RULE, LIMIT = "#000001", "#000002", "#000003", "#000004"
STAND_INS = {TEXT: "--ink", FAINT: "--soft", RULE: "--rule", LIMIT: "--limit"} | {f"#00001{i}": name for i, name in enumerate(COLOURS)}
LARGEST = 1e100
"""Beyond this a number is drawn as a gap: the axes' arithmetic ends somewhere."""
FEW = 25
"""Up to so many points a line's points are marked; two make a straight line."""

SETTINGS = {
    "svg.fonttype": "none",
    "font.size": 11,
    "text.parse_math": False,  # a server's text may hold dollars
    "axes.formatter.use_mathtext": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.xmargin": 0.02,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "ytick.left": False,
    "text.color": TEXT,
    "hatch.linewidth": 0.8,
}


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a name and a small drawing of its line, point or bar."""

    name: str
    swatch: Markup


@dataclass(frozen=True)
class Chart:
    title: str
    svg: Markup
    keys: list[Key]


def draw(plot: Plot, number: int, frame: Plot | None = None) -> Chart:
    """The chart with ids of its own, by its number. `frame`: a plot whose data this one's axes must hold, too, for a comparison."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shown = [(place, xs, ys) for place, series in enumerate(plot.series) for xs, ys in [_points(series, plot)] if xs]
    keys = [Key(plot.series[place].name, _swatch(plot.kind, place)) for place, _, _ in shown]
    if not shown:
        return Chart(plot.title, Markup("<p class=empty>Nothing was measured.</p>"), keys)
    with rc_context(SETTINGS | {"svg.hashsalt": f"chart{number}"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that the measuring font lacks; the browser has its own
        figure = Figure(figsize=(SIZE[0] / 72, SIZE[1] / 72), layout="constrained")
        axes = figure.subplots()
        if plot.log_x:
            axes.set_xscale("log")
        for place, xs, ys in shown:
            _series(axes, plot, place, xs, ys)
        _fit(axes, frame or plot)
        beyond = _limits(axes, plot)
        axes.set_xlabel(_short(plot.x_label))
        axes.set_title(_short(plot.y_label), loc="left", x=-0.02, fontsize=11, color=FAINT)
        _ticks(axes, plot)
        svg = _svg(figure, plot.title, f"c{number}")
    if len(keys) == 1 and keys[0].name.casefold() in ("", plot.title.casefold(), plot.y_label.casefold()):
        keys = []
    return Chart(plot.title, svg, keys + [Key(f"{name} lies outside", _swatch("limit", 0)) for name in beyond])


def _points(series: Series, plot: Plot) -> tuple[list[float], list[float]]:
    """What can be drawn; NaN where a line has a gap."""
    xs, ys = [], []
    for x, y in zip(series.x, series.y, strict=False):
        if not _drawable(x) or (plot.log_x and x <= 0):
            continue
        if _drawable(y):
            xs.append(x), ys.append(y)
        elif plot.kind == "line":
            xs.append(x), ys.append(math.nan)
    return (xs, ys) if any(map(math.isfinite, ys)) else ([], [])


def _drawable(value: float | None) -> bool:
    return value is not None and abs(value) < LARGEST


def _series(axes: Axes, plot: Plot, place: int, xs: list[float], ys: list[float]) -> None:
    look = place % len(COLOURS)
    colour, marker, dashes = f"#00001{look}", MARKERS[look], _dashes(look)
    if plot.kind == "bar":
        width = 0.8 * _narrowest(plot) / len(plot.series)
        shift = (place - (len(plot.series) - 1) / 2) * width
        face = {"color": colour} if not HATCHES[look] else {"facecolor": "none", "edgecolor": colour, "hatch": HATCHES[look]}
        axes.bar([x + shift for x in xs], ys, width * 0.92, **face)
    elif plot.kind == "scatter":
        axes.plot(xs, ys, marker, color=colour, markersize=3, markeredgewidth=0.6, fillstyle="none" if look else "full")
    elif plot.kind == "cdf":
        axes.step(xs, ys, where="post", color=colour, linestyle=dashes, linewidth=1.6)
    else:
        axes.plot(xs, ys, color=colour, linestyle=dashes, linewidth=1.6, marker=marker if 2 < len(xs) <= FEW else "", markersize=4)


def _dashes(look: int) -> str | tuple:
    return (0, tuple(float(part) / 1.6 for part in DASHES[look].split())) if DASHES[look] else "-"


def _narrowest(plot: Plot) -> float:
    """The least distance of two bars' places."""
    places = sorted({x for series in plot.series for x in series.x if _drawable(x)})
    return min((b - a for a, b in itertools.pairwise(places)), default=1.0) or 1.0


def _fit(axes: Axes, frame: Plot) -> None:
    """Axes that hold all of `frame`, and the zero of a quantity that is never below it unless that hides everything."""
    points = [_points(series, frame) for series in frame.series]
    ys = [y for _, values in points for y in values if math.isfinite(y)]
    xs = [x for values, _ in points for x in values]
    if frame.kind == "cdf":
        axes.set_ylim(0, 1.02)
    elif 0 <= min(ys) <= 0.7 * max(ys) or frame.kind == "bar":
        axes.set_ylim(min(0, min(ys) * 1.08), max(ys) * 1.08 or 1)
    if frame.kind != "bar" and min(xs) < max(xs):
        pad = 1 if frame.log_x else 0.02 * (max(xs) - min(xs))
        axes.set_xlim((min(xs) / 1.05, max(xs) * 1.05) if frame.log_x else (min(xs) - pad, max(xs) + pad))


def _limits(axes: Axes, plot: Plot) -> list[str]:
    """Labelled lines; the names of those too far out to be drawn without flattening the rest."""
    beyond = []
    for name, value in plot.limits.items():
        if not _drawable(value):
            continue
        low, high = axes.get_xlim() if plot.kind == "cdf" else axes.get_ylim()
        if not low - (high - low) <= value <= high + 2 * (high - low) or (plot.kind == "cdf" and plot.log_x and value <= 0):
            beyond.append(f"{_short(name)} ({value:.6g})")
            continue
        line = {"color": LIMIT, "linewidth": 1.1, "linestyle": (0, (3, 2)), "zorder": 3}
        text = {"color": LIMIT, "fontsize": 9.5, "zorder": 4}
        if plot.kind == "cdf":
            axes.axvline(value, **line)
            axes.set_xlim(min(low, value), max(high, value + 0.03 * (high - low)))
            axes.annotate(_short(name), (value, 0.04), (-3, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
                          rotation=90, ha="right", va="bottom", **text)  # fmt: skip
        else:
            axes.axhline(value, **line)
            axes.set_ylim(min(low, value), max(high, value + 0.1 * (high - low)))
            axes.annotate(_short(name), (1, value), (0, 2), xycoords=("axes fraction", "data"), textcoords="offset points",
                          ha="right", va="bottom", **text)  # fmt: skip
    return beyond


def _ticks(axes: Axes, plot: Plot) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    plain = FuncFormatter(lambda value, _: f"{value:,.10g}" if abs(value) < 1e6 or value == 0 else f"{value:.3g}".replace("e+0", "e"))
    axes.yaxis.set_major_formatter(plain)
    axes.xaxis.set_major_formatter(plain)
    whole = all(float(y).is_integer() for series in plot.series for y in series.y if _drawable(y))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=whole))
    if plot.log_x:
        low, high = axes.get_xlim()
        subs = (1, 2, 5) if high / low < 300 else (1,)
        axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=8))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        places = sorted({x for series in plot.series for x in series.x if _drawable(x)})
        if plot.kind == "bar" and len(places) <= 12:
            axes.set_xticks(places)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6))


def _short(text: str, longest: int = 48) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _svg(figure: Figure, title: str, prefix: str) -> Markup:
    """matplotlib's file made fit for a page: no header, ids of the page, colours of the page, a digit after the point."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"<[^<>]*>", lambda tag: _tag(tag[0]), svg)
    used = set(re.findall(r'(?:href="#|url\(#)([\w.-]+)', svg))
    svg = re.sub(r' id="([\w.-]+)"', lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "", svg)
    svg = re.sub(r'(href="#|url\(#)(?=[\w.-])', rf"\1{prefix}-", svg)
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r'<path d="[^"]*" style="fill: ?none"/>|<g></g>|<defs></defs>', "", svg)
    svg = re.sub(
        r'(?:<use [^<>]*?( style="[^"]*")/>)(?:<use [^<>]*?\1/>)+', lambda run: f"<g{run[1]}>{run[0].replace(run[1], '')}</g>", svg
    )
    head = f'<svg class=chart viewBox="0 0 {SIZE[0]} {SIZE[1]}" role="img" aria-label="{escape(title)}">'
    return Markup(head + svg[svg.index(">") + 1 :].strip())


def _tag(tag: str) -> str:
    """One tag, rewritten. Text between tags stays as it is."""
    tag = tag.replace("xlink:href", "href")
    for colour, name in STAND_INS.items():
        tag = tag.replace(colour, f"var({name})")
    tag = re.sub(r"font-family:[^;]*; ?", "", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    if re.search(r' (?:d|points|transform|x|y|width|height|x1|y1)="', tag):
        tag = re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), tag)
        tag = re.sub(r' d="[^"]*"', lambda path: re.sub(r" ?([A-Za-z]) (?=[\d-])", r"\1", path[0][4:]).join((' d="', "")), tag)
    return re.sub(r"\s+", " ", tag).replace("; ", ";").replace(": ", ":").replace(" />", "/>")


def _swatch(kind: str, place: int) -> Markup:
    """A legend's sample, 26 × 10 units."""
    look = place % len(COLOURS)
    stroke = f"stroke:var({COLOURS[look]})"
    if kind == "limit":
        inner = '<path d="M0 5H26" style="stroke:var(--limit);stroke-dasharray:3 2"/>'
    elif kind == "scatter":
        shape = {"o": "M10 5a3 3 0 1 1 6 0a3 3 0 1 1-6 0", "s": "M10 2h6v6h-6z", "^": "M13 1.5l3.5 6.5h-7z", "D": "M13 1l4 4-4 4-4-4z",
                 "v": "M13 8.5l3.5-6.5h-7z", "+": "M9 5h8M13 1v8"}[MARKERS[look]]  # fmt: skip
        inner = f'<path d="{shape}" style="{stroke};fill:{"none" if look else f"var({COLOURS[look]})"}"/>'
    elif kind == "bar":
        lines = " ".join(f"M{x} 9.5l7-9" for x in range(1, 20, 4)) if HATCHES[look] else ""
        fill = "none" if HATCHES[look] else f"var({COLOURS[look]})"
        inner = f'<path d="M1 .5h24v9h-24z{lines}" style="{stroke};fill:{fill}"/>'
    else:
        inner = f'<path d="M0 5H26" style="{stroke};stroke-width:2;stroke-dasharray:{DASHES[look] or "none"}"/>'
    return Markup(f'<svg class=swatch viewBox="0 0 26 10" aria-hidden=true>{inner}</svg>')
