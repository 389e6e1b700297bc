"""Compiled grammars of one vocabulary, and what a grammar allows next."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pitstop.errors import InvalidRequest
from pitstop.types import TokenTable

KEPT = 64
"""Compiled grammars that are kept, the latest used."""

MAX_DIGITS = 20
"""Digits in a row in a grammar with JSON, where something else could follow, too. No number that a reader keeps exact has more, and a small
model can write them for ever: fractions, seconds, durations."""

LIMITS = LLParserLimits(verbose_errors=False)
"""The library's own: they bound the work of compiling a grammar, of a mask, and the memory of both. An error must not quote the grammar."""


class Guides:
    """Thread-safe. The vocabulary is read on first use: most processes never need it."""

    def __init__(self, table: Callable[[], TokenTable], vocab_size: int | None = None) -> None:
        """vocab_size: of the masks, where a model has more or fewer logits than its vocabulary has tokens."""
        self._table = table
        self._vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._ends = np.empty(0, np.intp)
        self._digits: _Digits | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    def check(self, grammar: str, field: str = "grammar") -> None:
        """Compile, and see that an answer can begin. Raises InvalidRequest naming the field."""
        try:
            allowed = self.guide(grammar).allowed([])
            allowed[self._ends] = False
            if not allowed.any():
                raise InvalidRequest("it allows no answer but the empty one")
        except InvalidRequest as error:
            raise InvalidRequest(f"{field}: {error}", field) from None

    def guide(self, grammar: str) -> Guide:
        """A guide at the beginning of an answer. Raises InvalidRequest for a grammar that cannot be used."""
        matcher = self._matcher(grammar)
        return Guide(matcher, self._ends, self._vocab_size, self._digits if "%json" in grammar else None)

    def known(self, grammar: str) -> bool:
        """Whether `guide` has nothing to compile."""
        with self._lock:
            return grammar in self._compiled

    def _matcher(self, grammar: str) -> LLMatcher:
        with self._lock:
            if (found := self._compiled.get(grammar)) is not None:
                self._compiled.move_to_end(grammar)
                return found.deep_copy()
        matcher = LLMatcher(self._read(), grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise InvalidRequest(_reason(matcher))
        with self._lock:
            self._compiled[grammar] = matcher
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
            return matcher.deep_copy()

    def _read(self) -> LLTokenizer:
        with self._reading:
            if self._tokenizer is None:
                table = self._table()
                self._vocab_size = len(table.data) if self._vocab_size is None else self._vocab_size
                self._ends = np.array(sorted(end for end in table.ends if end < self._vocab_size), np.intp)
                self._digits = _Digits(table, self._vocab_size)
                self._tokenizer = LLTokenizer(_Vocabulary(table))
            return self._tokenizer


class Guide:
    """One answer's grammar. What it says depends on the tokens it is asked about alone; asking in order is quickest."""

    def __init__(self, matcher: LLMatcher, ends: np.ndarray, vocab_size: int, digits: _Digits | None) -> None:
        """digits: where runs of them are held short."""
        self._matcher = matcher
        self._ends = ends
        self._vocab_size = vocab_size
        self._digits = digits
        self._at: list[int] = []

    def allowed(self, tokens: Sequence[int]) -> np.ndarray:
        """The tokens that may follow `tokens`, the answer so far: bool [vocab_size]. End tokens are among them when it is complete.

        Raises InvalidRequest where nothing can follow, or the grammar is too ambiguous to tell.
        """
        self._go(tokens)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise InvalidRequest(f"the answer cannot go on in this grammar: {_reason(self._matcher)}")
        mask = np.zeros(self._vocab_size, bool)
        count = min(self._vocab_size, 8 * len(bits))
        mask[:count] = np.unpackbits(bits, count=count, bitorder="little")
        mask[self._ends] = self._matcher.is_accepting()
        if not mask.any():
            raise InvalidRequest("the answer cannot go on in this grammar: the model has no token for what must follow")
        if self._digits is not None and self._digits.run(tokens) >= MAX_DIGITS and (others := mask & ~self._digits.leading).any():
            return others
        return mask

    def complete(self, tokens: Sequence[int]) -> bool:
        """Whether nothing can follow `tokens`, which are a whole answer. Raises InvalidRequest where they are none."""
        self._go(tokens)
        return self._matcher.is_stopped() and self._matcher.is_accepting()

    def _go(self, tokens: Sequence[int]) -> None:
        """Be where `tokens` lead. Raises InvalidRequest when they are not derived from the grammar."""
        tokens, same = list(tokens), len(self._at)
        if tokens[:same] != self._at:
            same = next((i for i, (old, new) in enumerate(zip(self._at, tokens, strict=False)) if old != new), len(tokens))
            self._matcher.rollback(len(self._at) - same)
            del self._at[same:]
        rest = tokens[same:]
        taken = self._matcher.try_consume_tokens(rest) if rest else 0
        self._at += rest[:taken]
        if taken < len(rest):
            raise InvalidRequest(f"token {rest[taken]} does not follow from the grammar")


class _Digits:
    """ASCII digits at the edges of tokens. leading: bool [vocab_size], of tokens that begin with one."""

    def __init__(self, table: TokenTable, vocab_size: int) -> None:
        self.leading = np.zeros(vocab_size, bool)
        self._trailing = [len(data) - len(data.rstrip(b"0123456789")) for data in table.data]
        self._lengths = list(map(len, table.data))
        for token, data in enumerate(table.data[:vocab_size]):
            self.leading[token] = data[:1].isdigit()

    def run(self, tokens: Sequence[int]) -> int:
        """Digits in a row at the end of `tokens`, as far as MAX_DIGITS."""
        run = 0
        for token in reversed(tokens):
            run += self._trailing[token]
            if self._trailing[token] < self._lengths[token] or run >= MAX_DIGITS:
                break
        return run


class _Vocabulary:
    """A TokenTable as llguidance reads vocabularies."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, table: TokenTable) -> None:
        self.tokens = list(table.data)
        self.special_token_ids = sorted(table.control)
        self.eos_token_id = min(table.ends, default=None)  # stands for all of them: Guide.allowed

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("nothing is forced, so nothing is encoded")


def _reason(matcher: LLMatcher) -> str:
    """The library's message in one line, without the grammar that it quotes."""
    message = matcher.get_error().partition("\n   1 | ")[0].removesuffix("<non-verbose/>")
    message = re.sub(r"^at (\d+)\((\d+)\): ", lambda m: f"line {max(int(m[1]) - 1, 1)}, column {m[2]}: ", message)  # less our HEAD
    message = re.sub(r"^line \d+, column \d+: failed to compile JSON schema: ", "", message)
    return " ".join(message.split())[:300] or f"too complex ({matcher.stop_reason()})"
