"""Which place of the pool has lately computed which prompt beginnings, in blocks of a KV segment. Bounded, least recently used out."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

from pitstop.types import SEGMENT

Key = bytes


@dataclass(eq=False, slots=True)
class _Block:
    parent: Key
    tokens: array[int]
    places: set[int] = field(default_factory=set)


class Prefixes:
    """A tree of blocks, each named by the hash of all tokens up to its end.

    Places are the pool's positions, not members: whoever takes over a position takes over what is known of it.
    """

    def __init__(self, limit: int = 4096) -> None:
        """limit: blocks remembered, about half a KiB each."""
        self._limit = limit
        self._blocks: OrderedDict[Key, _Block] = OrderedDict()  # oldest use first

    def __len__(self) -> int:
        return len(self._blocks)

    def shared(self, prompt: list[int]) -> dict[int, int]:
        """Place → how many tokens of the prompt's beginning it has computed, for those that have any."""
        lengths: dict[int, int] = {}
        for number, (key, _) in enumerate(_walk(prompt), 1):
            block = self._blocks.get(key)
            if block is None:
                break
            for place in block.places:
                if number == 1 or lengths.get(place) == (number - 1) * SEGMENT:
                    lengths[place] = number * SEGMENT
        return lengths

    def served(self, place: int, prompt: list[int]) -> None:
        """`place` computes the prompt now."""
        parent, path = b"", []
        for key, tokens in _walk(prompt):
            block = self._blocks.setdefault(key, _Block(parent, tokens))
            block.places.add(place)
            path.append(key)
            parent = key
        for key in reversed(path):  # the beginnings count as used last, so that leaves go first
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._limit:
            self._blocks.popitem(last=False)

    def forget(self, place: int) -> None:
        """The cache of `place` is lost."""
        for key, block in list(self._blocks.items()):
            block.places.discard(place)
            if not block.places:
                del self._blocks[key]

    def hot(self, count: int, place: int | None = None) -> list[list[int]]:
        """The tokens of the `count` beginnings used last (by `place`), whole blocks, none the beginning of another."""
        blocks = {key: block for key, block in self._blocks.items() if place is None or place in block.places}
        parents = {block.parent for block in blocks.values()}
        leaves = [key for key in reversed(blocks) if key not in parents]
        return [self._tokens(key) for key in leaves[:count]]

    def _tokens(self, key: Key) -> list[int]:
        parts: list[array[int]] = []
        while block := self._blocks.get(key):
            parts.append(block.tokens)
            key = block.parent
        return [token for part in reversed(parts) for token in part]


def _walk(prompt: list[int]):
    """(key, tokens) of each whole block."""
    key = b""
    for start in range(0, len(prompt) - SEGMENT + 1, SEGMENT):
        tokens = array("I", prompt[start : start + SEGMENT])
        key = hashlib.blake2b(key + tokens.tobytes(), digest_size=16).digest()
        yield key, tokens
