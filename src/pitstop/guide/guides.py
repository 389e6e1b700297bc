"""Compiled grammars of one vocabulary, and what a grammar allows next."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pitstop.errors import InvalidRequest
from pitstop.guide.endless import START, Endless
from pitstop.types import TokenTable

KEPT = 64
"""Compiled grammars that are kept, the latest used."""

LIMITS = LLParserLimits(verbose_errors=False, max_items_in_row=8000)
"""The library's own bound the work of compiling a grammar, of a mask, and the memory of both. A row has an item or more for each
alternative at one place, of which the door takes 5,000. An error must not quote the grammar."""


class Guides:
    """Thread-safe. The vocabulary is read on first use: most processes never need it."""

    def __init__(self, table: Callable[[], TokenTable], vocab_size: int | None = None) -> None:
        """vocab_size: of the masks, where a model has more or fewer logits than its vocabulary has tokens."""
        self._table = table
        self._vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._ends = np.empty(0, np.intp)
        self._endless: Endless | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    def check(self, grammar: str, field: str = "grammar") -> None:
        """Compile, and see that an answer can begin and go on from there. Raises InvalidRequest naming the field."""
        try:
            guide = self.guide(grammar)
            allowed = guide.allowed([])
            allowed[self._ends] = False
            if not allowed.any():
                raise InvalidRequest("it allows no answer but the empty one")
            guide.complete([int(allowed.argmax())])  # more alternatives than LIMITS show when a token is taken, not in the mask
        except InvalidRequest as error:
            raise InvalidRequest(f"{field}: {error}", field) from None

    def guide(self, grammar: str) -> Guide:
        """A guide at the beginning of an answer. Raises InvalidRequest for a grammar that cannot be used."""
        matcher = self._matcher(grammar)
        endless = self._endless if "%json" in grammar else None
        return Guide(matcher, self._ends, self._vocab_size, self._tokenizer.vocab_size, endless)

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
                self._endless = Endless(table, self._vocab_size)
                self._tokenizer = LLTokenizer(_Vocabulary(table))
            return self._tokenizer


class Guide:
    """One answer's grammar. What it says depends on the tokens it is asked about alone; asking in order is quickest."""

    def __init__(self, matcher: LLMatcher, ends: np.ndarray, vocab_size: int, count: int, endless: Endless | None) -> None:
        """vocab_size: of the masks. count: of tokens that the matcher knows. endless: what is held short where it may be."""
        self._matcher = matcher
        self._ends = ends
        self._vocab_size = vocab_size
        self._count = min(count, vocab_size)
        self._endless = endless
        self._at: list[int] = []
        self._places = [START]  # of the answer's beginnings, from the empty one on

    def allowed(self, tokens: Sequence[int]) -> np.ndarray:
        """The tokens that may follow `tokens`, the answer so far: bool [vocab_size]. End tokens are among them when it is complete.

        Raises InvalidRequest where nothing can follow, or the grammar is too ambiguous to tell.
        """
        self._go(tokens)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._raise_error()
        mask = np.zeros(self._vocab_size, bool)
        mask[: self._count] = np.unpackbits(bits, count=self._count, bitorder="little")
        mask[self._ends] = self._matcher.is_accepting()
        if not mask.any():
            raise InvalidRequest("the answer cannot go on in this grammar: the model has no token for what must follow")
        for barred in self._barred():
            if (others := mask & ~barred).any():
                mask = others
        return mask

    def allows(self, tokens: Sequence[int], token: int) -> bool:
        """Whether `allowed(tokens)` has `token`, which takes much less time than to ask for all. Where that raises, this may say False."""
        self._go(tokens)
        if token in self._ends:
            return self._matcher.is_accepting()
        if any(barred[token] for barred in self._barred()):
            return bool(self.allowed(tokens)[token])
        return token < self._count and self._matcher.validate_tokens([token]) == 1

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
            del self._at[same:], self._places[same + 1 :]
        if not (rest := tokens[same:]):
            return
        taken = self._matcher.try_consume_tokens(rest)
        self._at += rest[:taken]
        if self._endless is not None:
            self._places += accumulate(rest[:taken], self._endless.after, initial=self._places.pop())
        if taken < len(rest):
            self._raise_error()
            raise InvalidRequest(f"token {rest[taken]} does not follow from the grammar")

    def _raise_error(self) -> None:
        """Raises InvalidRequest with the matcher's reason, if it gave up."""
        if self._matcher.is_error():
            raise InvalidRequest(f"the answer cannot go on in this grammar: {_reason(self._matcher)}")

    def _barred(self) -> list[np.ndarray]:
        return self._endless.barred(self._at, self._places[-1]) if self._endless is not None else []


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
