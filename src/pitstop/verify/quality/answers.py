"""Answers to a few chat prompts at temperature 0: how their length drifts, and how many stay the same, word for word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pitstop.verify.quality.measure import Measure
from pitstop.verify.quality.side import Side


def compare(a: Side, b: Side, prompts: list[str], max_tokens: int, step: Callable[[], None]) -> tuple[Measure, dict[str, Any]]:
    """Relative change of the mean length in characters, and what goes with it. Raises TargetError."""
    first, second, cut = [], [], 0
    for prompt in prompts:
        (before, cut_before), (after, cut_after) = a.chat(prompt, max_tokens), b.chat(prompt, max_tokens)
        first.append(before)
        second.append(after)
        cut += cut_before and cut_after
        step()
    lengths = [sum(map(len, answers)) / len(prompts) for answers in (first, second)]
    equal = sum(before == after for before, after in zip(first, second, strict=True))
    figures = {
        "prompts": len(prompts),
        "equal": equal,
        "cut_in_both": cut,
        "mean_length_a": lengths[0],
        "mean_length_b": lengths[1],
    }
    if not lengths[0]:
        return Measure("length_drift", None, "A answers nothing"), figures
    how = f"mean of {lengths[1]:.0f} characters for {lengths[0]:.0f}, {cut} of {len(prompts)} answers cut at {max_tokens} tokens in both"
    return Measure("length_drift", abs(lengths[1] / lengths[0] - 1), how), figures
