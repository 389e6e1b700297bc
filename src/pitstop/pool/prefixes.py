"""Which place of the pool has lately computed which prompt beginnings, in blocks of a KV segment. Bounded, least recently used out."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from pitstop.types import SEGMENT

Key = bytes


class Beginning(NamedTuple):
    """Of prompts, with the id of the adapter that they are for."""

    adapter: str
    tokens: list[int]


@dataclass(eq=False, slots=True)
class _Block:
    """at: where its tokens begin. One that no place has computed is a room that is free."""

    at: int
    parent: Key = b""
    places: set[int] = field(default_factory=set)


class Prefixes:
    """A tree of blocks, each named by the hash of all tokens up to its end, and of the adapter whose they are.

    Places are the pool's positions, not members: whoever takes over a position takes over what is known of it.
    """

    def __init__(self, limit: int = 4096) -> None:
        """limit: blocks remembered, about a KiB each. It is taken at once: memory that only fills cannot be told from a leak."""
        self._limit = limit
        self._tokens = array("I", bytes(4 * SEGMENT * limit))
        self._blocks = OrderedDict((_free(number), _Block(number * SEGMENT)) for number in range(limit))  # oldest use first

    def __len__(self) -> int:
        """Blocks that some place has computed."""
        return sum(bool(block.places) for block in self._blocks.values())

    def shared(self, prompt: list[int], adapter: str = "") -> dict[int, int]:
        """Place → how many tokens of the prompt's beginning it has computed, for those that have any."""
        lengths: dict[int, int] = {}
        for number, (key, _) in enumerate(_walk(prompt, adapter), 1):
            block = self._blocks.get(key)
            if block is None:
                break
            for place in block.places:
                if number == 1 or lengths.get(place) == (number - 1) * SEGMENT:
                    lengths[place] = number * SEGMENT
        return lengths

    def served(self, place: int, prompt: list[int], adapter: str = "") -> None:
        """`place` computes the prompt now."""
        parent, path = adapter.encode(), []
        for key, tokens in islice(_walk(prompt, adapter), self._limit):
            block = self._blocks.pop(key, None)
            if block is None:
                _, block = self._blocks.popitem(last=False)
                block.places.clear()
                block.parent = parent
                self._tokens[block.at : block.at + SEGMENT] = tokens
            block.places.add(place)
            self._blocks[key] = block
            path.append(key)
            parent = key
        for key in reversed(path):  # the beginnings count as used last, so that leaves go first
            self._blocks.move_to_end(key)

    def forget(self, place: int) -> None:
        """The cache of `place` is lost."""
        for block in self._blocks.values():
            block.places.discard(place)

    def clear(self) -> None:
        """All caches are lost."""
        for block in self._blocks.values():
            block.places.clear()

    def hot(self, count: int, place: int | None = None) -> list[Beginning]:
        """The `count` beginnings used last (by `place`), whole blocks, none the beginning of another."""
        blocks = {key: block for key, block in self._blocks.items() if (block.places if place is None else place in block.places)}
        parents = {block.parent for block in blocks.values()}
        leaves = [key for key in reversed(blocks) if key not in parents]
        return [self._beginning(key) for key in leaves[:count]]

    def _beginning(self, key: Key) -> Beginning:
        parts: list[array[int]] = []
        while block := self._blocks.get(key):
            parts.append(self._tokens[block.at : block.at + SEGMENT])
            key = block.parent
        # Where a block in between has been forgotten, the key is a hash: no adapter's, so that nobody takes the rest for a beginning.
        return Beginning(key.decode(errors="replace"), [token for part in reversed(parts) for token in part])


def _free(number: int) -> Key:
    """A name as long as a hash, which nothing has."""
    return b"free" + number.to_bytes(12)


def _walk(prompt: list[int], adapter: str):
    """(key, tokens) of each whole block. The key of what comes before the first is the adapter's id."""
    key = adapter.encode()
    for start in range(0, len(prompt) - SEGMENT + 1, SEGMENT):
        tokens = array("I", prompt[start : start + SEGMENT])
        key = hashlib.blake2b(key + tokens.tobytes(), digest_size=16).digest()
        yield key, tokens
