"""Numbers as a reader wants them, with the unit that their name says."""

from __future__ import annotations

import math

UNITS = {
    "_ms": " ms",
    "_kb_per_request": " KiB a request",
    "_per_hour": " an hour",
    "_kl": " nats",
    "_kl_p999": " nats",
    "_s": " s",
    ".client": " ms",
    ".memory": " KiB a request",
    ".handles": " an hour",
    ".threads": " an hour",
}
RELATIVE = ("perplexity_rise", "length_drift", "prefix_cache")


def show(value: float | None, name: str, beside: float | None = None) -> str:
    """A value of the check called `name`, "–" for none. Digits are added until it differs in print from `beside` if it does in fact.

    A millionth of `beside` is shown as 0: what is left of a straight line's arithmetic.
    """
    if value is None or not math.isfinite(value):
        return "–" if value is None or math.isnan(value) else f"{'−' if value < 0 else ''}∞"
    if beside is not None and abs(value) < 1e-6 * abs(beside):
        value = 0.0
    scale, unit = _unit(name)
    digits = 4
    while digits < 17 and beside is not None and beside != value and _number(value * scale, digits) == _number(beside * scale, digits):
        digits += 1
    return _number(value * scale, digits) + unit


def _unit(name: str) -> tuple[float, str]:
    if "share" in name.split("_") or name.endswith(RELATIVE):
        return 100, " %"
    return 1, next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def _number(value: float, digits: int) -> str:
    if value != 0 and not 1e-4 <= abs(value) < 1e15:
        text = f"{value:.{digits}g}"
    elif abs(value) >= 10**digits:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{digits}g}"
        if "e" in text:
            text = f"{value:,.0f}"
    return text.replace("-", "−", 1) if text.startswith("-") else text
