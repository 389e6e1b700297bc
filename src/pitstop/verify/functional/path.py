"""Paths into JSON-like values, and `${...}` in the strings of a case.

A path is names and brackets: `body.choices[0].text`, `tokens[*].logprob` (of every item that has one), `text[3:10]`, `events[-1]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()
"""What a path that leads nowhere finds: not even null."""

_PATH = re.compile(r"[\w-]+(?:\.[\w-]+|\[(?:\*|i|-?\d+|-?\d*:-?\d*)\])*")
_PART = re.compile(r"([\w-]+)|\[([^\]]+)\]")
_TEMPLATE = re.compile(r"\$\{([^}]*)\}")


def is_path(text: str) -> bool:
    return _PATH.fullmatch(text) is not None


def root(path: str) -> str:
    """The name that a path begins with."""
    return _PART.match(path)[0]


def find(value: Any, path: str) -> Any:
    """What `path` leads to, MISSING when nothing. After `[*]` the rest is looked up in every item, and a list comes back."""
    return _walk(value, [(found[1], found[2]) for found in _PART.finditer(path)])


def _walk(value: Any, parts: list[tuple[str | None, str | None]]) -> Any:
    for done, (name, bracket) in enumerate(parts, 1):
        if name is not None:
            value = value.get(name, MISSING) if isinstance(value, Mapping) else getattr(value, name, MISSING)
        elif not isinstance(value, list | str):
            return MISSING
        elif bracket == "*":
            found = (_walk(item, parts[done:]) for item in value)
            return [item for item in found if item is not MISSING]
        elif ":" in bracket:
            low, high = (int(bound) if bound else None for bound in bracket.split(":"))
            value = value[low:high]
        else:
            index = int(bracket)
            value = value[index] if -len(value) <= index < len(value) else MISSING
        if value is MISSING:
            return MISSING
    return value


def templates(value: Any) -> Iterator[str]:
    """The paths in all `${...}` of a nested value, keys included."""
    if isinstance(value, str):
        yield from _TEMPLATE.findall(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from templates(key)
            yield from templates(item)
    elif isinstance(value, list):
        for item in value:
            yield from templates(item)


def fill(value: Any, names: Mapping[str, Any]) -> Any:
    """A copy with every `${path}` looked up in `names`. A string that is one template becomes the value itself, of whatever type.

    `[i]` in a path is the number under the name i. Raises KeyError with the path when it leads nowhere.
    """
    if isinstance(value, str):
        whole = _TEMPLATE.fullmatch(value)
        if whole:
            return _look_up(whole[1], names)
        return _TEMPLATE.sub(lambda found: str(_look_up(found[1], names)), value)
    if isinstance(value, dict):
        return {fill(key, names): fill(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, names) for item in value]
    return value


def _look_up(path: str, names: Mapping[str, Any]) -> Any:
    found = find(names, path.replace("[i]", f"[{names.get('i', 0)}]"))
    if found is MISSING:
        raise KeyError(path)
    return found
