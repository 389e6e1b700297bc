"""What a model file states about its decoder, under Hugging Face's names, and the rule that nothing stated may be ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pitstop.errors import WeightsError


class Keys:
    """Typed reading of `values`; every key asked for counts as honoured. null is as good as absent, except for `optional`.

    spell: from our name of a key to the file's, for errors.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], spell: Callable[[str], str] = str) -> None:
        self.path = path
        self._values = values
        self._spell = spell
        self._read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it is. Absent and null give the default."""
        value = self.optional(name, default)
        return default if value is None else value

    def optional(self, name: str, default: Any = None) -> Any:
        """The value as it is; null gives None, whatever the default for an absent one."""
        self._read.add(name)
        return self._values.get(name, default)

    def integer(self, name: str, default: int | None = None, most: int = 2**31 - 1) -> int:
        """A positive integer up to `most`; `default` may be 0. Raises WeightsError, also when it is missing and has no default."""
        value = self.get(name)
        if value is None:
            return self._default(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.refuse(name, "is not a positive int")
        if value > most:
            raise self.refuse(name, f"is more than {most}, which cannot be right")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive, finite number; `default` may be 0."""
        value = self.get(name)
        if value is None:
            return self._default(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise self.refuse(name, "is not a positive float")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "is neither true nor false")
        return value

    def choice(self, name: str, choices: Mapping[str, Any], default: str) -> Any:
        """What `choices` maps the value to."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.refuse(name, f"is not honoured; we have {', '.join(choices)}")
        return choices[value]

    def refuse(self, name: str, why: str) -> WeightsError:
        """The error for the value of `name`."""
        return WeightsError(self.path, f"{self._spell(name)} = {_short(self._values.get(name))} {why}")

    def within(self, name: str, value: Mapping[str, Any]) -> Keys:
        """Keys of an object that lies under `name`."""
        return Keys(self.path, value, lambda key: self._spell(f"{name}.{key}"))

    def refuse_unread(self, harmless: Collection[str] = (), neutral: Mapping[str, Any] | None = None, whole: str = "a model") -> None:
        """Raise WeightsError for a key that nobody read: it may change the maths.

        harmless: keys that never do. neutral: keys that do not at this value. A null states nothing. whole: what to choose another of.
        """
        for name, value in self._values.items():
            if value is None or name in self._read or name in harmless:
                continue
            if not neutral or name not in neutral or value != neutral[name]:
                raise self.refuse(name, f"is not honoured yet; choose {whole} without it")

    def _default(self, name: str, default: Any) -> Any:
        if default is None:
            raise WeightsError(self.path, f"{self._spell(name)} is missing")
        return default


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
