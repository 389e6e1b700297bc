"""The verbs of expectations: what a value at a path must be. Each is a function (value, argument) → a complaint, or None."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pitstop.verify.functional.path import MISSING, find

UNLIKELY = -9999.0
"""OpenAI's stand-in for the log-probability of an impossible token."""

_TYPES = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None), "integer": int, "number": (int, float)}


class Unmet(Exception):
    """An expectation that does not hold; the message is one line: what was expected, what came."""


def check(where: str, value: Any, expected: Any) -> None:
    """`expected`: verbs with their arguments, or a literal, which must be equal. Raises Unmet."""
    for verb, argument in (expected if isinstance(expected, Mapping) else {"equals": expected}).items():
        if value is MISSING and verb != "present":
            raise Unmet(f"{where}: expected {_brief(expected)}, but there is no such field")
        if complaint := VERBS[verb](value, argument):
            raise Unmet(f"{where}: {complaint}")


def check_verbs(where: str, expected: Any) -> None:
    """Raise ValueError unless `expected` is a literal or made of known verbs."""
    if not isinstance(expected, Mapping):
        return
    if not expected:
        raise ValueError(f"expect: {where}: expects nothing")
    for verb, argument in expected.items():
        if verb not in VERBS:
            raise ValueError(f"expect: {where}: {verb!r} is none of the verbs {', '.join(VERBS)}")
        if verb in ("each", "length"):
            check_verbs(f"{where} {verb}", argument)
        if verb in ("json", "close"):
            if not isinstance(argument, Mapping):
                raise ValueError(f"expect: {where}: {verb} takes a mapping")
            for path, inner in argument.items() if verb == "json" else ():
                check_verbs(f"{where} {path}", inner)
        if verb == "matches" and "${" not in argument:
            re.compile(argument)


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    text = json.dumps(text, ensure_ascii=False) if isinstance(value, str) else text
    return text if len(text) <= 160 else f"{text[:100]} … {text[-40:]} ({len(text)} characters)"


def _equal(a: Any, b: Any) -> bool:
    """JSON's equality: true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b if isinstance(a, str) or isinstance(b, str) else a == b


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equals(value: Any, wanted: Any) -> str | None:
    if _equal(value, wanted):
        return None
    if isinstance(value, str) and isinstance(wanted, str) and min(len(value), len(wanted)) > 60:
        at = next((i for i, (a, b) in enumerate(zip(value, wanted, strict=False)) if a != b), min(len(value), len(wanted)))
        return f"from character {at} on expected {_brief(wanted[at:])}, got {_brief(value[at:])}"
    return f"expected {_brief(wanted)}, got {_brief(value)}"


def _differs(value: Any, other: Any) -> str | None:
    return f"expected anything but {_brief(other)}" if _equal(value, other) else None


def _one_of(value: Any, wanted: list) -> str | None:
    return None if any(_equal(value, item) for item in wanted) else f"expected one of {_brief(wanted)}, got {_brief(value)}"


def _type(value: Any, name: str) -> str | None:
    fits = isinstance(value, _TYPES[name]) and (not isinstance(value, bool) or name == "boolean")
    return None if fits else f"expected {name}, got {_brief(value)}"


def _present(value: Any, wanted: bool) -> str | None:
    if wanted and value is MISSING:
        return "expected, but there is no such field"
    return None if wanted or value is MISSING or value is None else f"expected no such field, got {_brief(value)}"


def _length(value: Any, wanted: Any) -> str | None:
    if not isinstance(value, list | str | dict):
        return f"expected something that has a length, got {_brief(value)}"
    return _nested("length", len(value), wanted)


def _nested(where: str, value: Any, expected: Any) -> str | None:
    try:
        check(where, value, expected)
    except Unmet as unmet:
        return str(unmet)
    return None


def _at_least(value: Any, bound: float) -> str | None:
    return None if _number(value) and value >= bound else f"expected at least {_brief(bound)}, got {_brief(value)}"


def _at_most(value: Any, bound: float) -> str | None:
    return None if _number(value) and value <= bound else f"expected at most {_brief(bound)}, got {_brief(value)}"


def _contains(value: Any, part: Any) -> str | None:
    held = part in value if isinstance(value, str) and isinstance(part, str) else isinstance(value, list) and part in value
    return None if held else f"expected it to contain {_brief(part)}, got {_brief(value)}"


def _lacks(value: Any, part: Any) -> str | None:
    if not isinstance(value, str | list):
        return f"expected text or a list, got {_brief(value)}"
    return f"expected no {_brief(part)} in {_brief(value)}" if part in value else None


def _starts(value: Any, part: str) -> str | None:
    held = isinstance(value, str) and value.startswith(part)
    return None if held else f"expected it to start with {_brief(part)}, got {_brief(value)}"


def _matches(value: Any, pattern: str) -> str | None:
    held = isinstance(value, str) and re.search(pattern, value)
    return None if held else f"expected a match of {pattern!r}, got {_brief(value)}"


def _each(value: Any, expected: Any) -> str | None:
    if not isinstance(value, list):
        return f"expected a list, got {_brief(value)}"
    return next(filter(None, (_nested(f"item {i}", item, expected) for i, item in enumerate(value))), None)


def _distinct(value: Any, wanted: int) -> str | None:
    found = len({json.dumps(item, sort_keys=True) for item in value})
    return None if found == wanted else f"expected {wanted} different values, got {found}: {_brief(value)}"


def _varied(value: Any, wanted: bool) -> str | None:
    found = len({json.dumps(item, sort_keys=True) for item in value})
    return None if (found > 1) == wanted else f"expected different values, got {_brief(value)}"


def _descending(value: Any, wanted: bool) -> str | None:
    held = isinstance(value, list) and all(map(_number, value)) and value == sorted(value, reverse=True)
    return None if held == wanted else f"expected numbers that do not rise, got {_brief(value)}"


def _joined(value: Any, whole: str) -> str | None:
    """Strings, or lists of bytes: end to end they are `whole`."""
    try:
        got = bytes(byte for part in value for byte in part).decode() if value and isinstance(value[0], list) else "".join(value)
    except (TypeError, ValueError) as error:
        return f"cannot be joined to text: {error}"
    return None if got == whole else f"joined: {_equals(got, whole)}"


def _close(value: Any, wanted: Mapping[str, Any]) -> str | None:
    to, within = wanted["to"], wanted["within"]
    if isinstance(to, list):
        if not isinstance(value, list) or len(value) != len(to):
            return f"expected {len(to)} numbers, got {_brief(value)}"
        pairs = zip(value, to, strict=True)
        return next(filter(None, (_close(a, {"to": b, "within": within}) for a, b in pairs)), None)
    held = _number(value) and _number(to) and abs(value - to) <= within
    return None if held else f"expected {_brief(to)} ± {within:g}, got {_brief(value)}"


def _json(value: Any, expected: Mapping[str, Any]) -> str | None:
    """Text that is JSON, with these things at these paths of it; the path "it" is the whole."""
    try:
        parsed = json.loads(value)
    except (TypeError, ValueError):
        return f"expected JSON, got {_brief(value)}"
    complaints = (_nested(where, find({"it": parsed}, where), wanted) for where, wanted in expected.items())
    return next(filter(None, complaints), None)


def _sound(value: Any, wanted: bool) -> str | None:
    """Log-probabilities that can be: in [-9999, 0], the likeliest in order, none twice, together at most 1, the token's own agreeing."""
    for i, entry in enumerate(value if isinstance(value, list) else []):
        own, top = entry["logprob"], entry["top"]
        likeliest = [other["logprob"] for other in top]
        if not all(_number(p) and UNLIKELY <= p <= 0 for p in (own, *likeliest)):
            return f"token {i}: log-probabilities lie in [{UNLIKELY:g}, 0], got {_brief([own, *likeliest])}"
        if sum(map(math.exp, likeliest)) > 1.001:
            return f"token {i}: the likeliest tokens' probabilities add up to {sum(map(math.exp, likeliest)):.4f}"
        same = [other["logprob"] for other in top if other["token"] == entry["token"] and other.get("bytes") == entry.get("bytes")]
        if same and min(abs(own - p) for p in same) > 1e-4:
            return f"token {i}: its log-probability is {own}, among the likeliest {same[0]}"
    return None if value and isinstance(value, list) else f"expected log-probabilities, got {_brief(value)}"


def _greedy(value: Any, wanted: bool) -> str | None:
    """Every token is the likeliest of its position."""
    for i, entry in enumerate(value if isinstance(value, list) else []):
        best = max((other["logprob"] for other in entry["top"]), default=None)
        if best is None or entry["logprob"] < best - 1e-4:
            return f"token {i}: {_brief(entry['token'])} has log-probability {entry['logprob']}, the likeliest has {best}"
    return None if value and isinstance(value, list) else f"expected log-probabilities, got {_brief(value)}"


VERBS: dict[str, Callable[[Any, Any], str | None]] = {
    "equals": _equals,
    "differs": _differs,
    "one_of": _one_of,
    "type": _type,
    "present": _present,
    "length": _length,
    "at_least": _at_least,
    "at_most": _at_most,
    "contains": _contains,
    "lacks": _lacks,
    "starts": _starts,
    "matches": _matches,
    "each": _each,
    "distinct": _distinct,
    "varied": _varied,
    "descending": _descending,
    "joined": _joined,
    "close": _close,
    "json": _json,
    "sound": _sound,
    "greedy": _greedy,
}
