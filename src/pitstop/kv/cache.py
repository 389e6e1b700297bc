"""Who holds which page and tail: the scheduler's view of the KV cache. Pure bookkeeping, no torch; it owns every slot and audits itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain

from pitstop.kv.capacity import stream_pages
from pitstop.kv.prefix import Node, PrefixIndex
from pitstop.kv.slots import Slots
from pitstop.types import SEGMENT, Piece


@dataclass(eq=False, slots=True)
class Holding:
    """What one request holds: its first `length` tokens are in `pages` (lead pages first) and, past the last whole segment, in `tail`."""

    node: Node
    pages: list[int] = field(default_factory=list)
    tail: int = -1  # -1: none
    length: int = 0
    marks: set[int] = field(default_factory=set)  # positions whose 16-bit tail is worth keeping: prompt end, branch points
    pending: list[Piece] = field(default_factory=list)  # reserved for the step in progress, and for the one after it
    cached: int = 0  # tokens that came from the index
    listed: bool = True  # what it computes goes into the index


class KVCache:
    """Pages for sealed segments, tail slots for open ones, and the prefix index over both.

    A request's life: `open` (prefix lookup) → (`reserve` → the step runs → `commit`)* → `close`. Copies that lookups ask for gather in
    `copies` and must run before the next step's first append. `lead_pages` is the codec's.
    """

    def __init__(self, pages: int, tails: int, *, lead_pages: int = 0, prefix: bool = True, cached_tails: int = 0) -> None:
        self.pages = Slots(pages)
        self.tails = Slots(tails)
        self.index = PrefixIndex(self.pages, self.tails, cached_tails if prefix else 0)
        self.copies: list[tuple[int, int]] = []
        self._lead_pages = lead_pages
        self._prefix = prefix
        self._holdings: set[Holding] = set()

    def open(self, tokens: list[int], prompt: int, *, limit: int | None = None, listed: bool = True, adapter: str = "") -> Holding | None:
        """Start holding for a request: takes what the index knows of `tokens`, all but the last one, which must be computed.

        `prompt` is the prompt's length. limit: take so many tokens at most. listed: leave there what is computed. adapter: whose keys and
        values they are; others' are never taken.
        None when no tail slot could be had for the copy (nothing is held then).
        """
        root = self.index.root_of(adapter)
        holding = Holding(root, marks={prompt}, listed=listed and self._prefix)
        limit = len(tokens) - 1 if limit is None else min(limit, len(tokens) - 1)
        if limit and self._prefix:
            holding.node, holding.pages, base = self.index.walk(tokens, limit, root)
            # Never a whole segment: what fills it must be computed, so that it is sealed. (A tail may outlive the page of its segment.)
            rest = tuple(tokens[base : min(base + SEGMENT - 1, limit)])
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
        """Slots for `count` more tokens: one piece per segment touched, rows counted from 0. None, and nothing taken, when short.

        After what is reserved already: a step may be prepared while the one before it runs.
        """
        pieces: list[Piece] = []
        length, open_tail = holding.length, holding.tail
        for piece in holding.pending[-1:]:
            length, open_tail = piece.start + piece.count, -1 if piece.pages else piece.tail
        done = 0
        while done < count:
            start = length + done
            rows = min(count - done, SEGMENT - start % SEGMENT)
            tail = open_tail if not pieces and open_tail >= 0 else self._take_tail()
            pages: tuple[int, ...] | None = ()
            if tail is not None and (start + rows) % SEGMENT == 0:
                pages = self._take_pages(1 if start >= SEGMENT else 1 + self._lead_pages)
            if tail is None or pages is None:
                if tail is not None and tail != open_tail:
                    self.tails.drop(tail)
                self._undo(holding, pieces)
                return None
            pieces.append(Piece(done, rows, start, tail, pages))
            done += rows
        holding.pending = holding.pending + pieces
        return pieces

    def retract(self, holding: Holding, pieces: list[Piece]) -> None:
        """Give back what `reserve` took last."""
        holding.pending = holding.pending[: -len(pieces)]
        self._undo(holding, pieces)

    def resize(self, holding: Holding, rows: int) -> list[Piece]:
        """Let the step that `reserve` prepared have so many rows more, for guessed tokens, or fewer, for those that were wrong: its pieces.

        They lie in its last piece's segment and never fill it: what is sealed is certain. So they need no slot, and the next rows of the
        stream overwrite the wrong ones before anybody looks at them.
        """
        *pieces, last = holding.pending
        last = last._replace(count=last.count + rows)
        open_still = not last.pages and last.start % SEGMENT + last.count < SEGMENT
        assert open_still, f"guessed rows fill a segment: {last}"
        holding.pending = [*pieces, last]
        return holding.pending

    def commit(self, holding: Holding, tokens: list[int], pieces: int | None = None) -> None:
        """A step that `reserve` prepared has run; `tokens` are all the request's known tokens.

        pieces: the first so many, where the others are a step's that still runs; None: all.
        """
        done, rest = (holding.pending, []) if pieces is None else (holding.pending[:pieces], holding.pending[pieces:])
        for piece in done:
            base = piece.start - piece.start % SEGMENT
            end = piece.start + piece.count
            segment = tuple(tokens[base:end])
            holding.length, holding.tail = end, piece.tail
            if any(piece.start < mark <= end for mark in holding.marks):
                self._keep_tail(holding, segment)
            if piece.pages:
                self._seal(holding, segment, piece.pages)
        holding.pending = rest

    def close(self, holding: Holding, tokens: list[int]) -> None:
        """Stop holding. What was computed stays in the index until its room is needed."""
        pending, holding.pending = holding.pending, []
        self._undo(holding, pending)
        if holding.tail >= 0:
            self._keep_tail(holding, tuple(tokens[holding.length - holding.length % SEGMENT : holding.length]))
            self.tails.drop(holding.tail)
        for page in holding.pages:
            self.pages.drop(page)
        self._holdings.remove(holding)

    def forget(self, adapter: str) -> None:
        """An adapter is gone: free what the index has of it. No request of it may be running."""
        self.index.forget(adapter)

    def fits(self, holding: Holding, tokens: int) -> bool:
        """Whether free pages, and those that eviction could free, suffice for the holding to grow to `tokens`."""
        return stream_pages(tokens, self._lead_pages) - len(holding.pages) <= self.pages.free + self.pages.cached

    def lend(self, count: int) -> list[int]:
        """Take `count` pages out of the pool, or as many as are free or cached; 0: all are back. Returns those that are out now.

        Nobody loses a page that he holds; the index loses those used longest ago.
        """
        self.pages.restore()
        while self.pages.free < count and self.index.evict_segment():
            pass
        return self.pages.withdraw(count)

    def check(self) -> None:
        """Raise AssertionError unless every slot's references are those of the holdings and the index: nothing lost, nothing held twice."""
        pages, tails = (Counter(slots) for slots in self.index.listed())
        for holding in self._holdings:
            pages.update(holding.pages)
            assert len(holding.pages) == (due := stream_pages(holding.length, self._lead_pages)), f"{len(holding.pages)} pages, not {due}"
            own = {holding.tail} | {piece.tail for piece in holding.pending}
            tails.update(own - {-1})
            pages.update(page for piece in holding.pending for page in piece.pages)
        for slots, held in ((self.pages, pages), (self.tails, tails)):
            wrong = [slot for slot in slots.all if slots.references(slot) != held[slot]]
            assert not wrong, f"slots {wrong} have {[slots.references(s) for s in wrong]} references, held {[held[s] for s in wrong]}"
            cached = sum(slots.is_cached(slot) for slot in slots.all)
            assert slots.cached == cached, f"{slots.cached} slots are said to be cached, {cached} are"
            assert slots.free + len(held) == slots.total, "free + cached + in use is not the total"

    def _seal(self, holding: Holding, segment: tuple[int, ...], pages: tuple[int, ...]) -> None:
        """The segment is full: its pages join the request's, its tail slot is let go."""
        if holding.listed:
            holding.node = self.index.insert(holding.node, segment, pages)
            if holding.node.pages != pages:  # an equal segment is sealed already, with equal bits: one copy is enough
                for page in pages:
                    self.pages.drop(page)
                pages = holding.node.pages
                for page in pages:
                    self.pages.share(page)
        holding.pages += pages
        self.tails.drop(holding.tail)
        holding.tail = -1

    def _keep_tail(self, holding: Holding, tokens: tuple[int, ...]) -> None:
        """List the holding's tail, valid for `tokens`, in the index."""
        if holding.listed:
            self.index.keep_tail(holding.node, tokens, holding.tail)

    def _undo(self, holding: Holding, pieces: list[Piece]) -> None:
        """Drop what pieces hold that are pending no more; those of one segment share a tail."""
        for tail in {piece.tail for piece in pieces} - {holding.tail} - {piece.tail for piece in holding.pending}:
            self.tails.drop(tail)
        for page in chain.from_iterable(piece.pages for piece in pieces):
            self.pages.drop(page)

    def _take_tail(self) -> int | None:
        slot = self.tails.take()
        while slot is None and self.index.evict_tail():
            slot = self.tails.take()
        return slot

    def _take_pages(self, count: int) -> tuple[int, ...] | None:
        """All of them, or None and nothing taken."""
        while self.pages.free < count:
            if not self.index.evict_segment():
                return None
        return tuple(self.pages.take() for _ in range(count))
