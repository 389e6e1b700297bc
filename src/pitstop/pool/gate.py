"""What a new worker must show before it gets anybody's request.

Engines are exact to the bit, so two of the same numerics give equal answers, token by token; of others the distributions must be near.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from pitstop.engine.guard_text import CHINESE, CODE, ENGLISH
from pitstop.engine.protocol import score_rows
from pitstop.errors import UpgradeFailed
from pitstop.pool.member import Member
from pitstop.pool.probe import embed_request, score_request
from pitstop.stats import Comparison
from pitstop.text.tokenizer import Tokenizer
from pitstop.types import SEGMENT

TIMEOUT = 600.0
"""Seconds for one question: the new worker may have a tenth of the processors."""

ANSWER = 64
"""Tokens of a canary's answer."""

_CANARIES = ((ENGLISH, 40), (CODE, 100), (CHINESE, 200))  # tokens: answers end before, at and after a segment's end
_SCORED = 4 * SEGMENT  # tokens of a scored text: its end reads three segments as they are stored, and a codec may favour the first


@dataclass(slots=True)
class Figures:
    """What was measured so far, None: not (yet). mean_kl in nats, same_top from 0 to 1, over `positions`."""

    smoke_tokens: int | None = None
    canaries_equal: int | None = None
    mean_kl: float | None = None
    same_top: float | None = None
    positions: int | None = None


class Gate:
    """Between a member that serves and one that wants to."""

    def __init__(self, old: Member, new: Member, max_kl: float) -> None:
        """max_kl: mean divergence in nats that is let through where answers may differ."""
        self.figures = Figures()
        self._old = old
        self._new = new
        self._max_kl = max_kl

    async def check(self) -> None:
        """Raises UpgradeFailed with the reason, and what asking raises: Unavailable, DeadlineExceeded, PitstopError."""
        if not self._new.facts.generates:
            return await self._vectors()
        await self._smoke()
        if self._old.numerics and self._old.numerics == self._new.numerics:
            await self._canaries()
        elif self._old.facts.generates and self._new.texts is self._old.texts and self._new.facts.vocab_size == self._old.facts.vocab_size:
            await self._divergence()

    async def _vectors(self) -> None:
        """An encoder's: finite, the same twice, and those of the old one where its arithmetic is the same."""
        equal = self._old.numerics == self._new.numerics
        for number, (text, _) in enumerate(_CANARIES, 1):
            tokens = _tokens(self._new.texts.tokenizer, text, min(SEGMENT, self._new.facts.context))
            first, again = [await self._vector(self._new, tokens) for _ in range(2)]
            if not np.isfinite(np.frombuffer(first, "<f4")).all():
                raise UpgradeFailed("the new worker's vectors are not finite")
            if first != again:
                raise UpgradeFailed("the new worker gives another vector for the same text")
            if equal and first != await self._vector(self._old, tokens):
                raise UpgradeFailed("the new worker's arithmetic is the same and its vectors are not")
            self.figures.canaries_equal = number if equal else None

    @staticmethod
    async def _vector(member: Member, tokens: list[int]) -> bytes:
        return (await member.aside(embed_request(tokens, TIMEOUT), TIMEOUT)).vector

    async def _smoke(self) -> None:
        """The new one answers, as long as it was asked to, in its own tokens, the same twice, from finite logits."""
        prompt, length = self._questions(self._new)[0]
        first, again = [await self._new.probe(prompt, length, TIMEOUT) for _ in range(2)]
        vocabulary = self._new.facts.vocab_size
        if len(first) != length:
            raise UpgradeFailed(f"the new worker answered {len(first)} tokens where {length} were asked for")
        if wrong := [token for token in first if not 0 <= token < vocabulary]:
            raise UpgradeFailed(f"the new worker answered with token {wrong[0]}, outside its vocabulary of {vocabulary}")
        if first != again:
            raise UpgradeFailed(f"the new worker answers the same question differently, from token {_first(first, again)} on")
        logits = await self._score(self._new, prompt, max(0, len(prompt) - 8))
        if not np.isfinite(logits).all():
            raise UpgradeFailed("the new worker's logits are not finite")
        self.figures.smoke_tokens = length

    async def _canaries(self) -> None:
        for number, (prompt, length) in enumerate(self._questions(self._old, self._new), 1):
            expected = await self._old.probe(prompt, length, TIMEOUT)
            found = await self._new.probe(prompt, length, TIMEOUT)
            if expected != found:
                raise UpgradeFailed(
                    f"the new worker's arithmetic is the same and its answer is not: they part at token {_first(expected, found)}"
                )
            self.figures.canaries_equal = number

    async def _divergence(self) -> None:
        """Over the end of each text, behind the other texts."""
        comparison = Comparison()
        context = min(self._old.facts.context, self._new.facts.context)
        rows = min(SEGMENT, score_rows(self._new.facts.vocab_size))
        parts = [_tokens(self._new.texts.tokenizer, text, min(_SCORED, context) // len(_CANARIES)) for text, _ in _CANARIES]
        for last in range(len(parts)):
            prompt = [token for part in (*parts[last + 1 :], *parts[: last + 1]) for token in part]
            start = max(0, len(prompt) - rows)
            expected, found = await self._score(self._old, prompt, start), await self._score(self._new, prompt, start)
            if not np.isfinite(found).all():
                raise UpgradeFailed("the new worker's logits are not finite")
            await asyncio.to_thread(comparison.add, expected, found)
        agreement, figures = comparison.agreement(), self.figures
        figures.mean_kl, figures.same_top, figures.positions = agreement.kl_mean, agreement.same_top, agreement.tokens
        if not agreement.kl_mean <= self._max_kl:
            raise UpgradeFailed(
                f"the new worker is {agreement.kl_mean:.3g} nats from the present one (mean KL divergence, {agreement.tokens} positions); "
                f"{self._max_kl:g} is the limit, and --max-kl sets another"
            )

    async def _score(self, member: Member, prompt: list[int], start: int) -> np.ndarray:
        """[rows, vocab] fp32. Raises UpgradeFailed when they do not come as they should."""
        logits = (await member.aside(score_request(prompt, start, TIMEOUT), TIMEOUT)).logits
        rows, vocabulary = len(prompt) - start, member.facts.vocab_size
        if len(logits) != 4 * rows * vocabulary:
            raise UpgradeFailed(f"worker {member.number} gave {len(logits)} bytes of logits for {rows} positions of {vocabulary}")
        return np.frombuffer(logits, dtype="<f4").reshape(rows, vocabulary)

    @staticmethod
    def _questions(*members: Member) -> list[tuple[list[int], int]]:
        """(prompt, length of the answer) in tokens, that fit all members."""
        context = min(member.facts.context for member in members)
        answer = min(ANSWER, max(1, context // 2))
        tokenizer = members[0].texts.tokenizer
        return [(_tokens(tokenizer, text, min(length, max(1, context - answer))), answer) for text, length in _CANARIES]


def _tokens(tokenizer: Tokenizer, text: str, length: int) -> list[int]:
    return tokenizer.encode(text)[:length]


def _first(one: list[int], other: list[int]) -> int:
    """Where two different lists part."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
