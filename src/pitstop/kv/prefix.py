"""The prefix index: which token sequences have their KV cached, as a tree of 128-token segments.

A node is a sealed segment that follows its parent's: its page, and for a stream's first one the codec's lead pages too. Beside its child
segments a node keeps tails: open or just filled segments still in 16 bits. A request walks down as far as whole segments match, then
copies the tail that shares most of its next tokens: its own segment must be seen in 16 bits (sealed once, DESIGN contract 4), so a sealed
page cannot serve for a part of a segment.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, TypeVar

from pitstop.kv.slots import Slots
from pitstop.types import SEGMENT

Tokens = tuple[int, ...]
T = TypeVar("T")


def common(a: Tokens, b: Tokens) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


class Neighbours(Generic[T]):
    """A map from token tuples that also finds the key with the longest common prefix: in sorted order it stands next to the query."""

    def __init__(self) -> None:
        self._keys: list[Tokens] = []
        self._values: dict[Tokens, T] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def values(self) -> list[T]:
        return list(self._values.values())

    def get(self, key: Tokens) -> T | None:
        return self._values.get(key)

    def put(self, key: Tokens, value: T) -> None:
        if key not in self._values:
            insort(self._keys, key)
        self._values[key] = value

    def remove(self, key: Tokens) -> None:
        del self._values[key]
        del self._keys[bisect_left(self._keys, key)]

    def nearest(self, query: Tokens) -> tuple[T | None, int]:
        """The value whose key shares the longest prefix with `query`, and that length; (None, 0) when none shares a token."""
        at = bisect_left(self._keys, query)
        best = max(((common(key, query), key) for key in self._keys[max(at - 1, 0) : at + 1]), default=(0, ()))
        return (self._values[best[1]], best[0]) if best[0] else (None, 0)


@dataclass(eq=False, slots=True)
class Node:
    """A sealed segment. The root has neither pages nor parent. Whoever holds one of the pages holds them all."""

    parent: Node | None
    tokens: Tokens
    pages: tuple[int, ...]
    children: Neighbours[Node] = field(default_factory=Neighbours)
    tails: Neighbours[Tail] = field(default_factory=Neighbours)


@dataclass(eq=False, slots=True)
class Tail:
    """A 16-bit segment after `node`: the first len(tokens) positions of `slot` are valid."""

    node: Node
    tokens: Tokens
    slot: int


class PrefixIndex:
    """Holds one reference on each page and tail it lists. Least recently used go first, leaves before their parents, tails before pages."""

    def __init__(self, pages: Slots, tails: Slots, max_tails: int) -> None:
        self.root = Node(None, (), ())
        self._roots = {"": self.root}  # keys and values that an adapter has changed are others: each has a tree of its own
        self._pages = pages
        self._tail_slots = tails
        self._max_tails = max_tails
        self._nodes: OrderedDict[Node, None] = OrderedDict()  # oldest use first
        self._tails: OrderedDict[int, Tail] = OrderedDict()  # by slot

    def root_of(self, adapter: str) -> Node:
        """Where the tree of an adapter, or of the model itself (""), begins."""
        return self._roots.setdefault(adapter, Node(None, (), ())) if adapter else self.root

    def forget(self, adapter: str) -> None:
        """Let go of all that is listed of an adapter. Nobody may be holding a node of its tree."""
        nodes = [root] if (root := self._roots.pop(adapter, None)) is not None else []
        for node in nodes:  # parents first; it grows
            nodes += node.children.values()
        for node in reversed(nodes):
            for tail in node.tails.values():
                self._forget_tail(tail)
            if node is not root:
                self._forget_node(node)

    def walk(self, tokens: list[int], limit: int, root: Node | None = None) -> tuple[Node, list[int], int]:
        """Down the whole segments of tokens[:limit]: the last node, the pages on the way, and how many tokens they hold."""
        node, pages, length = root or self.root, [], 0
        while length + SEGMENT <= limit:
            child = node.children.get(tuple(tokens[length : length + SEGMENT]))
            if child is None:
                break
            node = child
            pages += node.pages
            length += SEGMENT
        self._touch(node)
        return node, pages, length

    def tail(self, node: Node, rest: Tokens) -> tuple[int, int]:
        """(slot, tokens shared) of the best tail after `node` for the following tokens `rest`; (-1, 0) when none shares a token."""
        tail, shared = node.tails.nearest(rest)
        if tail is None:
            return -1, 0
        self._tails.move_to_end(tail.slot)
        return tail.slot, shared

    def branch(self, node: Node, rest: Tokens) -> int:
        """How many tokens of `rest` a sealed segment after `node` shares: where a new branch leaves the known tree."""
        return node.children.nearest(rest)[1]

    def insert(self, node: Node, tokens: Tokens, pages: tuple[int, ...]) -> Node:
        """The child of `node` for a full segment; a new one takes its own references on `pages`."""
        child = node.children.get(tokens)
        if child is None:
            child = Node(node, tokens, pages)
            node.children.put(tokens, child)
            for page in pages:
                self._pages.list(page)
            self._nodes[child] = None
        self._touch(child)
        return child

    def keep_tail(self, node: Node, tokens: Tokens, slot: int) -> None:
        """List `slot` as a tail after `node`; takes its own reference. A no-op when an equal or longer tail is there already."""
        near, shared = node.tails.nearest(tokens)
        if near is not None and shared == len(tokens):
            self._tails.move_to_end(near.slot)
            return
        if near is not None and shared == len(near.tokens):  # the new one is longer: it serves whoever the old one served
            self._forget_tail(near)
        if slot in self._tails:  # the same slot, grown since
            self._forget_tail(self._tails[slot])
        while len(self._tails) >= self._max_tails:
            if not self._tails:
                return
            self._forget_tail(next(iter(self._tails.values())))
        self._tail_slots.list(slot)
        self._tails[slot] = tail = Tail(node, tokens, slot)
        node.tails.put(tokens, tail)

    def evict_tail(self) -> bool:
        """Free the least recently used tail slot that nobody else holds; False when there is none."""
        for tail in self._tails.values():
            if self._tail_slots.is_cached(tail.slot):
                self._forget_tail(tail)
                return True
        return False

    def evict_segment(self) -> bool:
        """Free the least recently used segment that nobody else holds and that no other cached one follows; False when there is none."""
        for node in self._nodes:
            if not len(node.children) and all(self._pages.is_cached(page) for page in node.pages):
                for tail in node.tails.values():
                    self._forget_tail(tail)
                self._forget_node(node)
                return True
        return False

    def listed(self) -> tuple[list[int], list[int]]:
        """(pages, tail slots) that the index holds references on."""
        assert self.reachable() == len(self._nodes), "segments are listed that no root leads to"
        return [page for node in self._nodes for page in node.pages], list(self._tails)

    def reachable(self) -> int:
        """How many segments hang on a root: all that are listed, if nothing is wrong."""
        nodes = list(self._roots.values())
        for node in nodes:  # it grows
            nodes += node.children.values()
        return len(nodes) - len(self._roots)

    def _touch(self, node: Node) -> None:
        """Mark the path to `node` as used now, leaves before parents, so that leaves go first."""
        while node.parent is not None:
            self._nodes.move_to_end(node)
            node = node.parent

    def _forget_tail(self, tail: Tail) -> None:
        tail.node.tails.remove(tail.tokens)
        del self._tails[tail.slot]
        self._tail_slots.unlist(tail.slot)

    def _forget_node(self, node: Node) -> None:
        node.parent.children.remove(node.tokens)
        del self._nodes[node]
        for page in node.pages:
            self._pages.unlist(page)
