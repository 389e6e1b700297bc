"""Where a JSON object ends, while its text comes."""

from __future__ import annotations

_CLOSES = {"{": "}", "[": "]"}
_BARE = frozenset("0123456789+-.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_,: \t\r\n")


class Scanner:
    """Follows brackets and strings, a character at a time; numbers and words are not looked into."""

    def __init__(self) -> None:
        self._expected: list[str] = []
        self.in_string = False
        self._escaped = False

    @property
    def depth(self) -> int:
        """How many brackets are open."""
        return len(self._expected)

    def take(self, char: str) -> bool:
        """Go on by a character. False: no JSON goes on so; then the scanner is of no more use."""
        if self.in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self.in_string = False
            return True
        if char == '"':
            self.in_string = True
        elif char in _CLOSES:
            self._expected.append(_CLOSES[char])
        elif char in "}]":
            return bool(self._expected) and self._expected.pop() == char
        else:
            return char in _BARE
        return True
