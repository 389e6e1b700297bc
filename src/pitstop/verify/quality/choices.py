"""A small multiple-choice test: the choice whose text is likeliest after the question is the answer. Flips: answers that change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pitstop.stats import log_softmax
from pitstop.verify.quality.measure import Measure
from pitstop.verify.quality.plan import Item
from pitstop.verify.quality.side import Side


class _Score(NamedTuple):
    """Summed natural-log probability of a choice's tokens; `exact` is False when it is only an upper bound."""

    value: float
    exact: bool = True


class Chooser:
    """Asks one server. What the items share (the question alone) is asked once."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._rows: dict[tuple[int, ...], Any] = {}
        self._tops: dict[tuple[int, ...], dict[bytes, float]] = {}  # empty where the server names no tokens

    def choose(self, item: Item) -> int | None:
        """The number of the likeliest choice (of equals, the first); None when the server's likeliest tokens do not tell."""
        self._rows.clear()
        self._tops.clear()
        whole = [self._side.tokens(f"{item.prompt} {choice}") for choice in item.choices]
        start = _common([self._side.tokens(item.prompt), *whole])
        scores = [self._score(tokens, start) for tokens in whole]
        best = max((n for n, score in enumerate(scores) if score.exact), key=lambda n: scores[n].value, default=None)
        if best is None or any(score.value >= scores[best].value for score in scores if not score.exact):
            return None
        return best

    def _score(self, tokens: list[int], start: int) -> _Score:
        if self._side.ability == "rows":
            return self._by_rows(tokens, start)
        if self._side.ability == "echo":
            return _Score(sum(position.came for position in self._side.echoed(tokens)[start - 1 :]))
        return self._by_tops(tokens, start)

    def _by_rows(self, tokens: list[int], start: int) -> _Score:
        context = tuple(tokens[:-1])
        if context not in self._rows:
            self._rows[context] = log_softmax(self._side.rows(list(context), start - 1))
        rows = self._rows[context]
        return _Score(float(sum(row[token] for row, token in zip(rows, tokens[start:], strict=True))))

    def _by_tops(self, tokens: list[int], start: int) -> _Score:
        """A token that is not among the likeliest is at most as likely as the last of them, and what follows at most certain."""
        total = 0.0
        for position in range(start, len(tokens)):
            context = tuple(tokens[:position])
            if context not in self._tops:
                found = self._side.following(list(context))
                self._tops[context] = found.top if found else {}
            top, piece = self._tops[context], self._side.piece(tokens[position])
            if piece not in top:
                return _Score(total + min(top.values(), default=0.0), exact=False)
            total += top[piece]
        return _Score(total)


def _common(rows: list[list[int]]) -> int:
    """Length of the common beginning, 1 at least: nothing predicts a first token."""
    return max(1, next((n for n, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1), min(map(len, rows))))


def compare(a: Side, b: Side, items: list[Item], step: Callable[[], None]) -> tuple[Measure, dict[str, Any]]:
    """The share of items that the two answer differently, and how many each has right. Raises TargetError.

    An item that one of them leaves open counts as flipped: the share is then an upper bound.
    """
    choosers = Chooser(a), Chooser(b)
    answers: list[tuple[int | None, int | None]] = []
    for item in items:
        answers.append((choosers[0].choose(item), choosers[1].choose(item)))
        step()
    open_items = sum(None in pair for pair in answers)
    flipped = sum(pair[0] != pair[1] or None in pair for pair in answers)
    how = f"{flipped} of {len(items)} questions"
    if open_items:
        how += f", {open_items} of which the likeliest tokens leave open"
    figures: dict[str, Any] = {"items": len(items), "flipped": flipped, "open": open_items}
    for name, chosen in zip("ab", zip(*answers, strict=True), strict=True):
        right = sum(choice == item.answer for choice, item in zip(chosen, items, strict=True))
        figures[f"accuracy_{name}{'_at_least' if None in chosen else ''}"] = right / len(items)
    return Measure("flipped_share", flipped / len(items), how, "at_most" if open_items else ""), figures
