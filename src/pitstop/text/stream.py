"""From tokens to text while they come: incremental UTF-8 and stop strings, for one choice of one request."""

from __future__ import annotations

import codecs
from collections import deque
from typing import NamedTuple

from pitstop.text.tokenizer import Tokenizer
from pitstop.types import FinishReason


class Delta(NamedTuple):
    """What a push brought.

    text: characters that are now certain. tokens: how many of the pushed tokens belong to the answer, the one that completed a stop
    string included. stopped: a stop string was completed, now or before.
    """

    text: str
    tokens: int
    stopped: bool


class Settled(NamedTuple):
    """What an engine's step brought for one answer.

    text: characters that are now certain. tokens: those of the step that belong to the answer. shown: how many of them have text and
    scores: an end token has neither. finish: why the answer has ended, or None. stop: the stop string that ended it.
    """

    text: str
    tokens: list[int]
    shown: int
    finish: FinishReason | None
    stop: str | None = None


class TextStream:
    """Text of one answer. The deltas joined do not depend on how the tokens are grouped into pushes.

    Control tokens have no text, but for those in `shown`, which have their spelling. Bytes that can never become UTF-8 are U+FFFD each
    maximal part (Unicode 15, section 3.9, and what `Tokenizer.decode` does); a character that the answer leaves incomplete is dropped, and
    so is the beginning of an encoded surrogate.

    The first stop string to be completed ends the text just before its first character; of several completed by the same character the
    longest counts. One that is completed before the `min_tokens`-th token is ignored. Text is held back only while it is the longest
    suffix that could still become a stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), min_tokens: int = 0, shown: tuple[int, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._shown = frozenset(shown)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = _StopStrings(stop) if stop else None
        self._min_tokens = min_tokens
        self._count = 0
        self._held = ""
        self._stopped = False
        self._stop: str | None = None  # which one was completed

    def push(self, tokens: list[int]) -> Delta:
        """Take the next tokens. After a stop everything more is ignored: an empty delta of 0 tokens."""
        parts: list[str] = []
        used = 0
        for token in tokens:
            if self._stopped:
                break
            used += 1
            self._count += 1
            if token in self._shown or not self._tokenizer.is_control(token):
                parts.append(self._settle(self._decoder.decode(self._tokenizer.token_bytes(token))))
        return Delta("".join(parts), used, self._stopped)

    def settle(self, tokens: list[int], finish: FinishReason | None, complete: bool = False) -> Settled:
        """Take a step's tokens and the engine's own reason to end, if it had one. A stop string that is completed comes before that.

        With "stop" the engine's last token is what ended the answer: it counts and is not shown. complete: it is text like the others.
        """
        delta = self.push(tokens[:-1] if finish == "stop" and not complete else tokens)
        if delta.stopped:
            return Settled(delta.text, tokens[: delta.tokens], delta.tokens, "stop", self._stop)
        return Settled(delta.text + (self.finish().text if finish else ""), tokens, delta.tokens, finish)

    def finish(self) -> Delta:
        """No more tokens will come: what was held back for a stop string that was not completed."""
        text, self._held = self._held, ""
        return Delta(text, 0, self._stopped)

    def _settle(self, text: str) -> str:
        """The part of held and new text that is now certain; sets `_stopped`."""
        if self._stops is None or not text:
            return text
        text = self._held + text
        matched, at, kept = self._stops.feed(text, len(self._held), self._count >= self._min_tokens)
        self._stopped = matched
        if matched:
            self._held, self._stop = "", text[at : at + kept]
            return text[:at]
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


class _StopStrings:
    """Finds the first of several strings in text that comes in parts, in constant time a character.

    An automaton of Aho and Corasick ("Efficient string matching", CACM 18(6), 1975): a state is the longest suffix of the text so far
    that begins a stop string.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self._match = [0]  # length of the longest stop string that ends here
        for text in stop:
            self._add(text)
        self._link()
        self._state = 0

    def _add(self, text: str) -> None:
        state = 0
        for char in text:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[state] + 1)
                self._match.append(0)
            state = self._next[state][char]
        self._match[state] = len(text)

    def _link(self) -> None:
        """Fill in the longest proper suffixes, shallow states first."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            self._match[state] = self._match[state] or self._match[self._fail[state]]
            for char, child in self._next[state].items():
                self._fail[child] = self._step(self._fail[state], char)
                queue.append(child)

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, 0)

    def feed(self, text: str, start: int, heed: bool) -> tuple[bool, int, int]:
        """Go on with text[start:] → (a stop string was completed, where in `text` it begins, its length or else characters to hold back).

        heed: a completed stop string counts; else the search goes on past it.
        """
        state = self._state
        for i in range(start, len(text)):
            state = self._step(state, text[i])
            if heed and (length := self._match[state]):
                return True, i + 1 - length, length
        while state and not self._next[state]:  # complete, and was not heeded: only a suffix can still grow
            state = self._fail[state]
        self._state = state
        return False, 0, self._depth[state]
