"""Who holds which page and tail: the scheduler's view of the KV cache. Pure bookkeeping, no torch; it owns every slot and audits itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pitstop.kv.prefix import Node, PrefixIndex
from pitstop.kv.slots import Slots
from pitstop.types import SEGMENT, Piece


@dataclass(eq=False, slots=True)
class Holding:
    """What one request holds: its first `length` tokens are in `pages` and, past the last whole segment, in `tail` (-1: none)."""

    node: Node
    pages: list[int] = field(default_factory=list)
    tail: int = -1
    length: int = 0
    marks: set[int] = field(default_factory=set)  # positions whose 16-bit tail is worth keeping: prompt end, branch points
    pending: list[Piece] = field(default_factory=list)  # reserved for the step in progress
    cached: int = 0  # tokens that came from the index


class KVCache:
    """Pages for sealed segments, tail slots for open ones, and the prefix index over both.

    A request's life: `open` (prefix lookup) → (`reserve` → the step runs → `commit`)* → `close`. Copies that lookups ask for gather in
    `copies` and must run before the next step's first append.
    """

    def __init__(self, pages: int, tails: int, *, prefix: bool = True, cached_tails: int = 0) -> None:
        self.pages = Slots(pages)
        self.tails = Slots(tails)
        self.index = PrefixIndex(self.pages, self.tails, cached_tails if prefix else 0)
        self.copies: list[tuple[int, int]] = []
        self._prefix = prefix
        self._holdings: set[Holding] = set()

    def open(self, tokens: list[int], prompt: int, *, reuse: bool = True) -> Holding | None:
        """Start holding for a request: takes what the index knows of `tokens`, all but the last one, which must be computed.

        `prompt` is the prompt's length. None when no tail slot could be had for the copy (nothing is held then).
        """
        holding = Holding(self.index.root, marks={prompt})
        if reuse and self._prefix:
            limit = len(tokens) - 1
            holding.node, holding.pages = self.index.walk(tokens, limit)
            base = len(holding.pages) * SEGMENT
            rest = tuple(tokens[base : min(base + SEGMENT, limit)])
            source, shared = self.index.tail(holding.node, rest)
            branch = self.index.branch(holding.node, rest)
            if branch > shared:
                holding.marks.add(base + branch)
            for page in holding.pages:
                self.pages.share(page)
            if shared:
                self.tails.share(source)  # it must survive the eviction that may make room for its copy
                slot = self._take_tail()
                self.tails.drop(source)
                if slot is None:
                    for page in holding.pages:
                        self.pages.drop(page)
                    return None
                self.copies.append((source, slot))
                holding.tail = slot
            holding.length = holding.cached = base + shared
        self._holdings.add(holding)
        return holding

    def abandon(self, holding: Holding) -> None:
        """Undo an `open` that just was: as if it had never been."""
        if holding.tail >= 0:
            self.copies.pop()
            self.tails.drop(holding.tail)
        for page in holding.pages:
            self.pages.drop(page)
        self._holdings.remove(holding)

    def reserve(self, holding: Holding, count: int) -> list[Piece] | None:
        """Slots for `count` more tokens: one piece per segment touched, rows counted from 0. None, and nothing taken, when short."""
        pieces: list[Piece] = []
        done = 0
        while done < count:
            start = holding.length + done
            rows = min(count - done, SEGMENT - start % SEGMENT)
            tail = holding.tail if not pieces and holding.tail >= 0 else self._take_tail()
            seal = -1
            if tail is not None and (start + rows) % SEGMENT == 0:
                seal = self._take_page()
            if tail is None or seal is None:
                if tail is not None and tail != holding.tail:
                    self.tails.drop(tail)
                self._undo(holding, pieces)
                return None
            pieces.append(Piece(done, rows, start, tail, seal))
            done += rows
        holding.pending = pieces
        return pieces

    def commit(self, holding: Holding, tokens: list[int]) -> None:
        """The step that `reserve` prepared has run; `tokens` are all the request's known tokens."""
        for piece in holding.pending:
            base = piece.start - piece.start % SEGMENT
            end = piece.start + piece.count
            segment = tuple(tokens[base:end])
            holding.length, holding.tail = end, piece.tail
            if any(piece.start < mark <= end for mark in holding.marks):
                self._keep_tail(holding, segment)
            if piece.seal >= 0:
                self._seal(holding, segment, piece.seal)
        holding.pending = []

    def close(self, holding: Holding, tokens: list[int]) -> None:
        """Stop holding. What was computed stays in the index until its room is needed."""
        self._undo(holding, holding.pending)
        holding.pending = []
        if holding.tail >= 0:
            self._keep_tail(holding, tuple(tokens[len(holding.pages) * SEGMENT : holding.length]))
            self.tails.drop(holding.tail)
        for page in holding.pages:
            self.pages.drop(page)
        self._holdings.remove(holding)

    def available_pages(self) -> int:
        """Pages that are free or that eviction could free."""
        return self.pages.free + self.pages.cached

    def check(self) -> None:
        """Raise AssertionError unless every slot's references are those of the holdings and the index: nothing lost, nothing held twice."""
        pages, tails = (Counter(slots) for slots in self.index.listed())
        for holding in self._holdings:
            pages.update(holding.pages)
            own = {holding.tail} | {piece.tail for piece in holding.pending}
            tails.update(own - {-1})
            pages.update(piece.seal for piece in holding.pending if piece.seal >= 0)
        for slots, held in ((self.pages, pages), (self.tails, tails)):
            wrong = [slot for slot in range(slots.total) if slots.references(slot) != held[slot]]
            assert not wrong, f"slots {wrong} have {[slots.references(s) for s in wrong]} references, held {[held[s] for s in wrong]}"
            cached = sum(slots.is_cached(slot) for slot in range(slots.total))
            assert slots.cached == cached, f"{slots.cached} slots are said to be cached, {cached} are"
            assert slots.free + len(held) == slots.total, "free + cached + in use is not the total"

    def _seal(self, holding: Holding, segment: tuple[int, ...], page: int) -> None:
        """The segment is full: its page joins the request's, its tail slot is let go."""
        if self._prefix:
            holding.node = self.index.insert(holding.node, segment, page)
            if holding.node.page != page:  # an equal segment is sealed already, with equal bits: one page is enough
                self.pages.drop(page)
                page = holding.node.page
                self.pages.share(page)
        holding.pages.append(page)
        self.tails.drop(holding.tail)
        holding.tail = -1

    def _keep_tail(self, holding: Holding, tokens: tuple[int, ...]) -> None:
        """List the holding's tail, valid for `tokens`, in the index."""
        if self._prefix:
            self.index.keep_tail(holding.node, tokens, holding.tail)

    def _undo(self, holding: Holding, pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.tail != holding.tail:
                self.tails.drop(piece.tail)
            if piece.seal >= 0:
                self.pages.drop(piece.seal)

    def _take_tail(self) -> int | None:
        slot = self.tails.take()
        while slot is None and self.index.evict_tail():
            slot = self.tails.take()
        return slot

    def _take_page(self) -> int | None:
        page = self.pages.take()
        while page is None and self.index.evict_page():
            page = self.pages.take()
        return page
