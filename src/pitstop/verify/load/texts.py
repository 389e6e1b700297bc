"""Prompts of real text and of wished-for lengths in tokens, no two of which begin alike."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pitstop.errors import ConfigError

BEGINNING = 16
"""Characters in which prompts differ: so a prefix cache has nothing to give but a few tokens that happen to agree."""
ROUNDS = 15
UNCOUNTED = 0.95
"""Where a server counts no tokens for us, prompts aim so far below their length, so that none exceeds the context."""

Count = Callable[[str], int]


def read_source(path: Path | None = None) -> str:
    """The text of a file; without one, the Python language reference, English prose and code, as every Python carries it: 700 kB.

    Raises ConfigError for a file that is no text.
    """
    if path is None:
        return "\n\n".join(importlib.import_module("pydoc_data.topics").topics.values())
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


class Prompts:
    """A supply of prompts. `count`: tokens of a text on the server under test, its own additions included; None: not to be had."""

    def __init__(self, source: str, seed: int, count: Count | None, characters_per_token: float) -> None:
        self._source = source
        self._count = count
        self._ratio = characters_per_token
        starts = np.array([match.start() for match in re.finditer(r"\b\w", source)])
        self._starts = np.random.default_rng((seed, 0x7E87)).permutation(starts)
        self._next = 0
        self._taken: set[str] = set()

    def take(self, tokens: int) -> str:
        """A new prompt of at most `tokens` tokens, and nearly as many. Raises ConfigError when the text is used up or too short."""
        spare = int(tokens * self._ratio * 1.5) + BEGINNING
        while self._next < len(self._starts):
            start = int(self._starts[self._next])
            self._next += 1
            beginning = self._source[start : start + BEGINNING]
            if start + spare <= len(self._source) and beginning not in self._taken:
                self._taken.add(beginning)
                return self._cut(start, tokens)
        raise ConfigError(
            f"the text of {len(self._source)} characters gives no more prompts of {tokens} tokens; give a longer one with --text"
        )

    def _cut(self, start: int, tokens: int) -> str:
        """Cut where the server counts right: by straight lines between what fits and what does not, every third time by half."""
        if self._count is None:
            return self._source[start : start + max(BEGINNING, int(UNCOUNTED * tokens * self._ratio))]
        slack = max(1, tokens // 100)
        low, fits, high, exceeds = 0, 0, 0, 0  # characters and tokens of the longest that fits, of the shortest that does not
        length = int(tokens * self._ratio)
        for turn in range(ROUNDS):
            length = max(1, min(length, len(self._source) - start))
            counted = self._count(self._source[start : start + length])
            if counted <= tokens:
                low, fits = max((low, fits), (length, counted))
            elif not high or length < high:
                high, exceeds = length, counted
            if tokens - slack <= fits or (high and high - low < 2):
                break
            if not high:
                length = low + 1 + round((tokens - fits) * max(low, 1) / max(fits, 1))
            elif turn % 3 == 2:
                length = (low + high) // 2
            else:
                length = low + max(1, min(high - low - 1, round((high - low) * (tokens - slack / 2 - fits) / (exceeds - fits))))
        best = self._source[start : start + low]
        self._ratio = low / fits if fits else self._ratio
        if len(best) < BEGINNING:
            raise ConfigError(f"no text of {BEGINNING} characters fits into {tokens} tokens; make the mix's prompts longer")
        return best
