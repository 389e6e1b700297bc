"""The quality tier: B against A, measured in turns, to one outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pitstop.errors import TargetError
from pitstop.verify.outcome import Check, Outcome, Table
from pitstop.verify.quality import answers, choices, distributions
from pitstop.verify.quality.measure import Measure
from pitstop.verify.quality.plan import Plan
from pitstop.verify.quality.side import Side
from pitstop.verify.slo import QualityLimits
from pitstop.verify.target import Target

Show = Callable[[str, int, int], None]

HIGH_IS_GOOD = ("same_top_share",)

_BOUND = (
    "A divergence over them, all others lumped into one, is a lower bound: one over the limit is a sure failure, one within it no proof."
)
_NOTES = {
    "rows": "Distributions are compared over the whole vocabulary, by logits that /admin/score of both servers gives.",
    "echo": f"At least one server gives no more than its likeliest tokens. {_BOUND} Perplexities are exact.",
    "next": f"At least one server gives no more than the likeliest next tokens, so each position costs a request. {_BOUND} "
    "Perplexities are estimates, over the positions at which the text's token is among the likeliest of both.",
}


def quiet(phase: str, done: int, total: int) -> None:
    """Shows nothing."""


def run(a: Target, b: Target, limits: QualityLimits, plan: Plan, show: Show = quiet, admin_keys: tuple[str, str] = ("", "")) -> Outcome:
    """Compare B with A. They are asked in turns, never both at once. admin_keys: of A and B, for /admin/score.

    Raises TargetError when one of them does not answer as it should, ConfigError for a text that is too short.
    """
    started = time.time()
    with Side("A", a, admin_keys[0]) as first, Side("B", b, admin_keys[1]) as second:
        measures, figures, notes = _measure(first, second, plan, show)
    checks = [check for measure in measures if (check := _check(measure, getattr(limits, measure.limit))) is not None]
    return Outcome(
        tier="quality",
        target=b.facts | {f"reference_{name}": value for name, value in a.facts.items()},
        started=started,
        seconds=time.time() - started,
        seed=0,
        checks=checks,
        figures={measure.key: measure.value for measure in measures} | figures,
        tables=[_summary(measures, limits), *_tables(figures)],
        notes=notes,
    )


def _measure(a: Side, b: Side, plan: Plan, show: Show) -> tuple[list[Measure], dict[str, Any], list[str]]:
    texts = {name: (a.tokens(text), b.tokens(text)) for name, text in plan.texts.items()}
    beginning = next(iter(texts.values()))
    a.find_ability(beginning[0])
    b.find_ability(beginning[1])
    figures: dict[str, Any] = {"ability_a": a.ability, "ability_b": b.ability, "window": plan.window}
    why_not = _why_not(a, b, texts)
    if why_not:
        measures, notes = [Measure(limit, None, why_not) for limit in distributions.LIMITS], [f"Not compared: {why_not}."]
    else:
        ability = distributions.common_ability(a, b)
        windows = {name: plan.cut(tokens) for name, (tokens, _) in texts.items()}
        notes = [_NOTES[ability], *_short(windows)]
        step = _stepper("texts", distributions.steps(windows, ability, plan), show)
        measures, figures["texts"] = distributions.compare(a, b, windows, plan, step)
    if "none" in (a.ability, b.ability):
        measures.append(Measure("flipped_share", None, "a server without log-probabilities has no choice that is likeliest"))
    else:
        flips, figures["choices"] = choices.compare(a, b, plan.items, _stepper("questions", len(plan.items), show))
        measures.append(flips)
    drift, figures["answers"] = answers.compare(a, b, plan.prompts, plan.answer_tokens, _stepper("answers", len(plan.prompts), show))
    return [*measures, drift], figures, notes


def _why_not(a: Side, b: Side, texts: dict[str, tuple[list[int], list[int]]]) -> str:
    """Why distributions cannot be compared; "" when they can."""
    differ = [name for name, (first, second) in texts.items() if first != second]
    if differ:
        return f"the tokenizers differ on {', '.join(differ)}, so there is no token of which both could be asked"
    silent = [side.name for side in (a, b) if side.ability == "none"]
    return f"{' and '.join(silent)} give no log-probabilities" if silent else ""


def _short(windows: distributions.Windows) -> list[str]:
    """What is said of texts that fill no window. Raises TargetError when that is all of them."""
    empty = [name for name, cut in windows.items() if not cut]
    if len(empty) == len(windows):
        raise TargetError("no text is long enough for a window; give a longer --text or a smaller --window")
    return [f"Too short for a window, and left out: {', '.join(empty)}."] if empty else []


def _stepper(phase: str, total: int, show: Show) -> Callable[[], None]:
    done = 0
    show(phase, done, total)

    def step() -> None:
        nonlocal done
        done += 1
        show(phase, done, total)

    return step


def _check(measure: Measure, limit: float | None) -> Check | None:
    """None for what is not judged. What could not be measured fails."""
    if limit is None:
        return None
    name = f"quality.{measure.key}"
    if measure.value is None:
        return Check(name=name, passed=False, reason=f"not measured: {measure.how}", limit=limit)
    high = measure.limit in HIGH_IS_GOOD
    passed = measure.value >= limit if high else measure.value <= limit  # a NaN fails
    reason = f"{measure.shown()} ({'at least' if high else 'at most'} {limit:g} is allowed), {measure.how}"
    return Check(name=name, passed=passed, reason=reason, value=measure.value, limit=limit)


def _summary(measures: list[Measure], limits: QualityLimits) -> Table:
    rows = []
    for measure in measures:
        limit = getattr(limits, measure.limit)
        rows.append([measure.limit, measure.shown(), "" if limit is None else f"{limit:g}", measure.how])
    return Table(title="B against A", columns=["figure", "value", "limit", "how"], rows=rows)


def _tables(figures: dict[str, Any]) -> list[Table]:
    tables = []
    if texts := figures.get("texts"):
        names = list(texts["all"])
        rows = [[name, *(_cell(part[key]) for key in names)] for name, part in texts.items()]
        tables.append(Table(title="By text", columns=["text", *map(_heading, names)], rows=rows))
    for title, part in (("Multiple choice", figures.get("choices")), ("Chat answers at temperature 0", figures["answers"])):
        if part:
            tables.append(Table(title=title, columns=[key.replace("_", " ") for key in part], rows=[[*map(_cell, part.values())]]))
    return tables


_HEADINGS = {"positions": "n", "same_top_share": "same top", "mean_kl": "KL mean", "kl_p999": "KL 99.9 %"}


def _heading(key: str) -> str:
    """A figure's name for a column: short, with ≥ for a lower bound and ≈ for an estimate."""
    for ending, sign in (("_at_least", " ≥"), ("_estimate", " ≈")):
        if key.endswith(ending):
            return _heading(key.removesuffix(ending)) + sign
    return _HEADINGS.get(key, key.replace("perplexity_", "PPL ").replace("_", " "))


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
