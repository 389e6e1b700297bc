"""Distributions of the next token over texts: by all logits where both servers give them, else by their likeliest tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pitstop.errors import TargetError
from pitstop.stats import Agreement, Comparison, lumped_divergence, percentile, perplexity
from pitstop.verify.quality.measure import Measure
from pitstop.verify.quality.plan import Plan
from pitstop.verify.quality.side import ABILITIES, Ability, Position, Side

ROWS = 128
"""Positions asked for at once: 25 MB of logits at 50,000 tokens."""

LIMITS = ("mean_kl", "kl_p999", "same_top_share", "perplexity_rise")

Step = Callable[[], None]
Windows = dict[str, list[list[int]]]


def common_ability(a: Side, b: Side) -> Ability:
    """The most that both give."""
    return max((a.ability, b.ability), key=ABILITIES.index)


def steps(windows: Windows, ability: Ability, plan: Plan) -> int:
    """How often `compare` calls its `step`."""
    if ability == "next":
        return sum(len(_spread(cut, plan)) for cut in windows.values())
    return sum(map(len, windows.values()))


def compare(a: Side, b: Side, windows: Windows, plan: Plan, step: Step) -> tuple[list[Measure], dict[str, Any]]:
    """Measures over all texts, and figures by text. One server computes at a time. Raises TargetError."""
    ability = common_ability(a, b)
    if ability == "rows":
        return _by_rows(a, b, windows, plan, step)
    return _by_tops(a, b, windows, plan, step)


def _by_rows(a: Side, b: Side, windows: Windows, plan: Plan, step: Step) -> tuple[list[Measure], dict[str, Any]]:
    whole, by_text = Comparison(), {}
    for name, cut in windows.items():
        part = Comparison()
        for window in cut:
            for start in range(plan.lead, len(window) - 1, ROWS):
                prompt = window[: min(start + ROWS, len(window) - 1)]
                reference, other = a.rows(prompt, start), b.rows(prompt, start)
                targets = np.array(window[start + 1 : len(prompt) + 1])
                try:
                    for comparison in (whole, part):
                        comparison.add(reference, other, targets)
                except ValueError as error:
                    raise TargetError(f"the logits of A and B on {name} cannot be compared: {error}") from None
            step()
        if cut:
            by_text[name] = _figures(part.agreement())
    found = whole.agreement()
    how = f"over all tokens of the vocabulary, at {found.tokens} positions"
    values = (found.kl_mean, found.kl_p999, found.same_top, found.perplexity_rise)
    return [Measure(limit, value, how) for limit, value in zip(LIMITS, values, strict=True)], {"all": _figures(found)} | by_text


def _figures(found: Agreement) -> dict[str, Any]:
    return {
        "positions": found.tokens,
        "mean_kl": found.kl_mean,
        "kl_p999": found.kl_p999,
        "same_top_share": found.same_top,
        "perplexity_a": found.reference_perplexity,
        "perplexity_b": found.perplexity,
        "perplexity_rise": found.perplexity_rise,
    }


def _by_tops(a: Side, b: Side, windows: Windows, plan: Plan, step: Step) -> tuple[list[Measure], dict[str, Any]]:
    """What both give of the same positions: lower bounds of the divergences, and the rest as far as it is known."""
    echo = common_ability(a, b) == "echo"
    read = _echoed if echo else _asked
    pairs = {name: list(read(a, b, cut, plan, step)) for name, cut in windows.items()}
    everything = [pair for part in pairs.values() for pair in part]
    if not everything:
        raise TargetError("the texts have no position to judge")
    figures = {name: _top_figures(part, echo) for name, part in {"all": everything, **pairs}.items() if part}
    found, top = figures["all"], min(a.top, b.top)
    lumped = f"over the likeliest {top} tokens, all others lumped into one, at {found['positions']} positions"
    measures = [
        Measure("mean_kl", found["mean_kl_at_least"], lumped, "at_least"),
        Measure("kl_p999", found["kl_p999_at_least"], lumped, "at_least"),
        Measure("same_top_share", found["same_top_share"], f"at {found['positions']} positions"),
    ]
    if echo:
        measures.append(Measure("perplexity_rise", found["perplexity_rise"], f"at {found['positions']} positions"))
    else:
        how = f"over {found['positions_known']} of {found['positions']} positions, at which the text's token is among both likeliest {top}"
        measures.append(Measure("perplexity_rise", found["perplexity_rise_estimate"], how, "estimate"))
    return measures, figures


def _echoed(a: Side, b: Side, cut: list[list[int]], plan: Plan, step: Step) -> Iterator[tuple[Position, Position]]:
    for window in cut:
        yield from zip(a.echoed(window)[plan.lead :], b.echoed(window)[plan.lead :], strict=True)
        step()


def _asked(a: Side, b: Side, cut: list[list[int]], plan: Plan, step: Step) -> Iterator[tuple[Position, Position]]:
    """One request a position; those are left out of which a server says nothing. The text's token is looked up among the likeliest."""
    for window, position in _spread(cut, plan):
        piece = a.piece(window[position + 1])
        first, second = (side.following(window[: position + 1]) for side in (a, b))
        if first and second:
            yield tuple(Position(one.top, one.top.get(piece) if piece else None) for one in (first, second))
        step()


def _spread(cut: list[list[int]], plan: Plan) -> list[tuple[list[int], int]]:
    """(window, position): about plan.contexts of the judged ones, evenly spread, those of a window in order."""
    every = [(window, position) for window in cut for position in range(plan.lead, len(window) - 1)]
    return every[:: max(1, len(every) // plan.contexts)]


def _top_figures(pairs: list[tuple[Position, Position]], echo: bool) -> dict[str, Any]:
    bounds = [_bound(first, second) for first, second in pairs]
    same = [_likeliest(first) == _likeliest(second) for first, second in pairs]
    known = [(first.came, second.came) for first, second in pairs if first.came is not None and second.came is not None]
    perplexities = [perplexity(np.array(values)) for values in zip(*known, strict=True)] if known else [None, None]
    rise = perplexities[1] / perplexities[0] - 1 if known else None
    label = "" if echo else "_estimate"
    return {
        "positions": len(pairs),
        "positions_known": len(known),
        "mean_kl_at_least": float(np.mean(bounds)),
        "kl_p999_at_least": percentile(bounds, 99.9),
        "same_top_share": float(np.mean(same)),
        f"perplexity_a{label}": perplexities[0],
        f"perplexity_b{label}": perplexities[1],
        f"perplexity_rise{label}": rise,
    }


def _bound(first: Position, second: Position) -> float:
    shared = sorted(first.top.keys() & second.top.keys())
    return lumped_divergence(np.array([first.top[piece] for piece in shared]), np.array([second.top[piece] for piece in shared]))


def _likeliest(position: Position) -> bytes:
    return max(position.top, key=position.top.__getitem__)
