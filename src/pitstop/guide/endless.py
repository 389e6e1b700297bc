"""What a small model can go on with for ever in JSON, held short where something else can follow: digits, exponents, brackets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pitstop.types import TokenTable

MAX_DIGITS = 20
"""Digits in a row. No number that a reader keeps exact has more, and a small model can write them for ever: fractions, seconds."""

MAX_EXPONENT = 2
"""Digits of a number's exponent. With MAX_DIGITS before its point, a number is then finite as a double."""

MAX_NESTING = 16
"""Objects and lists within each other. A small model can lengthen a list whose nodes hold the next one for ever."""

_LONGEST = 64
"""Tokens that no number held so has."""

_NUMERIC = b"0123456789eE.+-"
_EXPONENT = re.compile(rb"[0-9][eE][+-]?([0-9]*)$")
_DIGITS = re.compile(rb"[+-]?([0-9]*)")
_TOO_LONG = re.compile(rb'[^"]*[eE][+-]?[0-9]{%d}' % (MAX_EXPONENT + 1))
_MARKS = re.compile(rb'["\\\[\]{}]')
_IN_STRING = {ord('"'): 0, ord("\\"): 2}


class Place(NamedTuple):
    """Where in JSON a text ends. depth: brackets that are open. within: 0: between strings, 1: in a string, 2: after its backslash."""

    depth: int
    within: int


START = Place(0, 0)


class Endless:
    """Of one vocabulary."""

    def __init__(self, table: TokenTable, vocab_size: int) -> None:
        """vocab_size: of the masks."""
        self._digits = _Digits(table, vocab_size)
        self._exponents = _Exponents(table, vocab_size)
        self._nesting = _Nesting(table, vocab_size)

    def after(self, place: Place, token: int) -> Place:
        """Where `token` leads from `place`."""
        return self._nesting.after(place, token)

    def barred(self, tokens: Sequence[int], place: Place) -> list[np.ndarray]:
        """Tokens that should not follow `tokens`, which end at `place`, if others can: masks, bool [vocab_size], as few as possible."""
        found = (self._digits.barred(tokens), self._exponents.barred(tokens, place), self._nesting.barred(place))
        return [mask for mask in found if mask is not None]


class _Digits:
    """ASCII digits at the edges of tokens."""

    def __init__(self, table: TokenTable, vocab_size: int) -> None:
        """vocab_size: of the masks."""
        self._leading = np.zeros(vocab_size, bool)
        self._trailing = [len(data) - len(data.rstrip(b"0123456789")) for data in table.data]
        self._lengths = list(map(len, table.data))
        for token, data in enumerate(table.data[:vocab_size]):
            self._leading[token] = data[:1].isdigit()

    def barred(self, tokens: Sequence[int]) -> np.ndarray | None:
        """Tokens that would lengthen the digits at the end of `tokens` beyond MAX_DIGITS: bool [vocab_size]. None: none would."""
        run = 0
        for token in reversed(tokens):
            run += self._trailing[token]
            if self._trailing[token] < self._lengths[token] or run >= MAX_DIGITS:
                break
        return self._leading if run >= MAX_DIGITS else None


class _Exponents:
    """Of numbers between strings. Outside of all brackets may be prose, so there only an answer that is one number has any."""

    def __init__(self, table: TokenTable, vocab_size: int) -> None:
        """vocab_size: of the masks."""
        self._data = table.data
        digits = np.zeros(vocab_size, np.intp)
        self._hold = np.zeros(vocab_size, bool)  # tokens in which an exponent begins that is too long
        for token, data in enumerate(table.data[:vocab_size]):
            digits[token] = len(_DIGITS.match(data)[1])
            self._hold[token] = _TOO_LONG.match(data) is not None
        self._lengthen = self._hold | (digits > np.arange(MAX_EXPONENT + 1)[:, None])  # by digits left: tokens that begin with more
        self._any = bool(self._hold.any())

    def barred(self, tokens: Sequence[int], place: Place) -> np.ndarray | None:
        """Tokens that would make an exponent longer than MAX_EXPONENT: bool [vocab_size]. None: none would."""
        if place.within:
            return None
        tail = b""
        for token in reversed(tokens[-_LONGEST:]):
            tail = self._data[token] + tail
            if tail.rstrip(_NUMERIC):
                if not place.depth:
                    return None
                break
        if (exponent := _EXPONENT.search(tail)) is None:
            return self._hold if self._any else None
        return self._lengthen[max(MAX_EXPONENT - len(exponent[1]), 0)]


class _Nesting:
    """Brackets and quotes in tokens."""

    def __init__(self, table: TokenTable, vocab_size: int) -> None:
        """vocab_size: of the masks."""
        self._moves: dict[int, tuple[tuple[int, int], ...]] = {}  # of tokens with marks, for each `within`: (deeper by, within)
        self._rises = np.zeros((3, vocab_size), np.int16)  # how much deeper a token goes at its deepest
        for token, data in enumerate(table.data):
            if token in table.control or not _MARKS.search(data):
                continue
            moves = [_walk(data, within) for within in range(3)]
            self._moves[token] = tuple((deeper, within) for deeper, within, _ in moves)
            if token < vocab_size:
                self._rises[:, token] = [rise for _, _, rise in moves]
        self._steepest = int(self._rises.max(initial=0))

    def after(self, place: Place, token: int) -> Place:
        """Where `token` leads."""
        if (moves := self._moves.get(token)) is None:
            return Place(place.depth, 1) if place.within == 2 else place
        deeper, within = moves[place.within]
        return Place(max(place.depth + deeper, 0), within)

    def barred(self, place: Place) -> np.ndarray | None:
        """Tokens that would go deeper than MAX_NESTING, or deeper at all where it is that deep: bool [vocab_size]. None: none would."""
        left = max(MAX_NESTING - place.depth, 0)
        return self._rises[place.within] > left if self._steepest > left else None


def _walk(data: bytes, within: int) -> tuple[int, int, int]:
    """(deeper by, within, deepest) after bytes of JSON."""
    depth = deepest = 0
    for byte in data:
        if within == 2:
            within = 1
        elif within == 1:
            within = _IN_STRING.get(byte, 1)
        elif byte == 0x22:
            within = 1
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return depth, within, deepest
