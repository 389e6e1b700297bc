"""Guesses for tests: what plain decoding is known to bring, wrong tokens among it, and all of it computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock
from zlib import crc32

from pitstop.engine.lookup import Lookup
from pitstop.engine.speculation import Speculation


def everything(_: Speculation, chances: list[list[float]]) -> list[int]:
    """Stands in for Speculation.share, which goes by measured times."""
    return [len(each) for each in chances]


@contextmanager
def computed() -> Iterator[None]:
    """Whatever is guessed is computed."""
    with mock.patch.object(Speculation, "share", everything):
        yield


@contextmanager
def foresight(prompts: Sequence[list[int]], answers: Sequence[list[int]], wrong: int = 5) -> Iterator[None]:
    """About one of `wrong` guessed tokens is another than the one that comes."""
    known = {tuple(prompt): answer for prompt, answer in zip(prompts, answers, strict=True)}

    def guess(self: Lookup, count: int) -> list[int]:
        prompt, done = self._known[: self._prompt_length], len(self._known) - self._prompt_length
        tokens = list(enumerate(known[tuple(prompt)][done : done + count], done))
        return [(token + (crc32(b"%d %d" % (len(prompt), at)) % wrong == 0)) % 250 for at, token in tokens]

    with computed(), mock.patch.object(Lookup, "guess", guess):
        yield
