"""What comes next, if a text goes on as it did before: guesses by looking up the latest tokens in the text itself. Pure Python, no torch.

The idea is prompt lookup (Saxena 2023) and LLMA (Yang et al., arXiv:2304.04487): answers that quote, correct or continue what is there
repeat long runs of it.
"""

from __future__ import annotations

LENGTHS = (4, 3, 2)
"""Of the n-grams that are looked up, the surest first."""

LONGEST = LENGTHS[0]

START = (0.0, 0.0, 0.2, 0.35, 0.6)
"""The chance of a guess before anything is known of the stream, by how many tokens before it agree: what prose and quotes share."""

WEIGHT = 1 / 8
"""Of the latest token in the chances: they are those of the last dozen tokens or so."""


class Lookup:
    """The guesses of one sequence. A token costs three dictionary entries, some 500 bytes, and a guess as many look-ups at most.

    A guess begins after the latest earlier occurrence of the last n tokens. As long as it comes true it goes on from there; when it fails,
    the next one is looked up. The state is a function of the tokens alone, not of the steps that brought them, so a replay guesses alike.

    The chance that the next token comes as guessed depends on how many tokens before it agree with the place that is guessed from. It is
    followed for each such number apart (LONGEST stands for all larger ones), over all tokens of the answer: whether a guess was computed or
    not, the next token tells whether it was right. So a stream whose guesses stopped paying comes back by itself, at no cost.
    """

    def __init__(self, known: list[int], prompt_length: int) -> None:
        """known: the sequence's tokens, the prompt's first, which the owner appends to."""
        self._known = known
        self._prompt_length = prompt_length
        self._after: dict[tuple[int, ...], int] = {}  # n-gram → the position after its latest occurrence that is not the end
        self._read = 0
        self._next = -1  # the guess is that the text goes on as from this position; -1: no guess
        self._agreed = 0  # how many tokens before there are also those at the end
        self._rates = [*START]

    def guess(self, count: int) -> list[int]:
        """The next `count` tokens, or none."""
        self._follow()
        if self._next < 0:
            return []
        tokens = self._known[self._next : self._next + count]
        period = len(tokens)
        while len(tokens) < count:  # the text has repeated itself up to its end, so it goes on to do so
            tokens.append(tokens[-period])
        return tokens

    def chances(self, count: int) -> list[float]:
        """Of the guess's first `count` tokens: that this one, and all before it, come."""
        chances, chance = [], 1.0
        for agreed in range(self._agreed, self._agreed + count):
            chance *= self._rates[min(agreed, LONGEST)]
            chances.append(chance)
        return chances

    def _follow(self) -> None:
        """Take in the tokens that have become known."""
        known, after = self._known, self._after
        for at in range(self._read, len(known)):
            if self._next >= 0:
                self._judge(known[at] == known[self._next])
            for n in LENGTHS:
                if at >= n:
                    after[tuple(known[at - n : at])] = at
            if self._next < 0 and at + 1 >= self._prompt_length:
                self._look_up(at + 1)
        self._read = len(known)

    def _judge(self, right: bool) -> None:
        kind = min(self._agreed, LONGEST)
        self._rates[kind] += WEIGHT * (right - self._rates[kind])
        self._next, self._agreed = (self._next + 1, self._agreed + 1) if right else (-1, 0)

    def _look_up(self, end: int) -> None:
        """A new guess for position `end`."""
        for n in LENGTHS:
            if n <= end and (at := self._after.get(tuple(self._known[end - n : end]))) is not None:
                self._next, self._agreed = at, n
                return
