"""A figure, what it is worth, and how it was found."""

from __future__ import annotations

from typing import Literal, NamedTuple

Worth = Literal["", "at_least", "at_most", "estimate"]
"""Nothing: the figure itself. Else a bound of it, or an estimate."""

_WORDS = {"": "", "at_least": "at least ", "at_most": "at most ", "estimate": "about "}


class Measure(NamedTuple):
    """`limit` is the limit's name in slo.QualityLimits. value None: it could not be measured, and `how` says why."""

    limit: str
    value: float | None
    how: str
    worth: Worth = ""

    @property
    def key(self) -> str:
        """The name among the figures and of the check: it says when the figure is only a bound."""
        return f"{self.limit}_{self.worth}" if self.worth else self.limit

    def shown(self) -> str:
        if self.value is None:
            return "not measured"
        return f"{_WORDS[self.worth]}{self.value:.3g}"
