"""A model without tensors: it remembers which tokens lie in which slot, and refuses to read what a real kernel could not have."""

from __future__ import annotations

import hashlib

import numpy as np

from pitstop.types import SEGMENT, Logprob, Sampled, Span, StepPlan, StepResult


class FakeRunner:
    """Runs plans on remembered tokens. The next token is a hash of everything before it, so a wrong context shows in the answer.

    repeats: the share of tokens that are a function of the latest three, and one of seven, so that the text repeats itself.
    """

    def __init__(self, vocab_size: int = 1000, lead_pages: int = 0, repeats: float = 0.0) -> None:
        self.vocab_size = vocab_size
        self.lead_pages = lead_pages
        self.repeats = repeats
        self.pages: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.tails: dict[int, list[int | None]] = {}
        self.rows = 0

    def next_token(self, known: list[int]) -> int:
        digest = hashlib.sha256(repr(known).encode()).digest()
        if digest[4] < 256 * self.repeats:
            return hashlib.sha256(repr(known[-3:]).encode()).digest()[0] % 7
        return int.from_bytes(digest[:4], "little") % self.vocab_size

    def logits(self, known: list[int], first: int, end: int) -> bytes:
        """For each position, four bytes that depend on everything up to it."""
        return b"".join(self.next_token(known[: position + 1]).to_bytes(4, "little") for position in range(first, end))

    def hidden(self, known: list[int], first: int, end: int) -> np.ndarray:
        """For each position, two numbers: one that depends on everything up to it, and the position."""
        rows = [(self.next_token(known[: position + 1]) / 7, position) for position in range(first, end)]
        return np.array(rows, np.float32).reshape(-1, 2)

    def run(self, plan: StepPlan) -> StepResult:
        for source, destination in plan.copies:
            self.tails[destination] = list(self.tails.get(source, [None] * SEGMENT))
        for span in plan.spans:  # all rows are written, then everything is sealed, then everything is read, as the kernels do
            for piece in span.pieces:
                tail = self.tails.setdefault(piece.tail, [None] * SEGMENT)
                for offset in range(piece.count):
                    position = piece.start + offset
                    tail[position % SEGMENT] = (span.known + span.guess)[position]
        for span in plan.spans:
            for piece in span.pieces:
                for page in piece.pages:
                    self.pages[page] = ("own" if page == piece.seal else "lead", tuple(self.tails[piece.tail]))
        result: StepResult = {}
        for span in plan.spans:
            self._check(span)
            self.rows += span.count
            if span.wanted:
                end = span.start + span.count
                scores = [Logprob(t, 0.0) for t in span.request.prompt[end - span.wanted + 1 : end + 1]]
                tokens = self.accepted(span) if span.samples else []
                if span.request.embed is not None:
                    result[span.request.id] = Sampled([], hidden=self.hidden(span.known, end - span.wanted, end))
                    continue
                if span.request.score_from is not None:
                    result[span.request.id] = Sampled([], logits=self.logits(span.known, end - span.wanted, end))
                    continue
                result[span.request.id] = Sampled(tokens, None, scores if span.request.params.prompt_logprobs is not None else None)
        return result

    def accepted(self, span: Span) -> list[int]:
        known = list(span.known)
        for guessed in [*span.guess, None]:
            known.append(self.next_token(known))
            if known[-1] != guessed:
                break
        return known[len(span.known) :]

    def _check(self, span) -> None:
        tokens = span.known + span.guess
        covered = 0
        for piece in span.pieces:
            assert piece.row == covered
            assert piece.start == span.start + covered
            base = piece.start - piece.start % SEGMENT
            end = piece.start + piece.count
            assert end <= base + SEGMENT, "a piece crosses a segment"
            assert (piece.seal >= 0) == (end == base + SEGMENT), "a full segment is sealed, an open one is not"
            table = [("own", i) for i in range(end // SEGMENT)]
            table = [("lead", 0)] * (self.lead_pages if table else 0) + table
            for page, (kind, index) in zip(span.pages, table, strict=False):
                assert self.pages[page] == (kind, tuple(tokens[index * SEGMENT : (index + 1) * SEGMENT])), f"page {page} holds others"
            assert len(span.pages) >= len(table)
            assert self.tails[piece.tail][: end - base] == tokens[base:end], f"tail {piece.tail} holds other tokens"
            covered += piece.count
        assert covered == span.count
