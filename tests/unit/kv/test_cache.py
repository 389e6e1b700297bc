"""The cache's bookkeeping under any order of calls, with and without lead pages: audited after each, every page holds what it should."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pitstop.kv.cache import Holding, KVCache
from pitstop.kv.capacity import stream_pages
from pitstop.kv.prefix import PrefixIndex
from pitstop.kv.slots import Slots

Stream = tuple[Holding, list[int]]


class CacheMachine(RuleBasedStateMachine):
    """Streams over two kinds of segments, of the model and of an adapter, so that equal tokens are common.

    `written` is what a sealed page holds: (lead or own, adapter, tokens).
    """

    make = KVCache

    @initialize(
        pages=st.integers(2, 9),
        tails=st.integers(3, 8),
        lead_pages=st.integers(0, 1),
        kept=st.integers(0, 3),
        prefix=st.sampled_from([True, True, True, False]),
    )
    def start(self, pages: int, tails: int, lead_pages: int, kept: int, prefix: bool) -> None:
        self.cache = self.make(pages, tails, lead_pages=lead_pages, prefix=prefix, cached_tails=kept)
        self.lead_pages = lead_pages
        self.written: dict[int, tuple[bool, str, tuple[int, ...]]] = {}
        self.open: list[Stream] = []
        self.adapters: dict[Holding, str] = {}

    @precondition(lambda self: len(self.open) < 3)
    @rule(
        kinds=st.lists(st.integers(0, 1), min_size=2, max_size=4),
        cut=st.integers(1, 128),
        give_up=st.integers(0, 4),
        adapter=st.sampled_from(["", "", "a"]),
    )
    def open_one(self, kinds: list[int], cut: int, give_up: int, adapter: str = "") -> None:
        tokens = [token for kind in kinds for token in range(kind * 100 + 20, kind * 100 + 148)][: (len(kinds) - 1) * 128 + cut]
        holding = self.cache.open(tokens, len(tokens), adapter=adapter)
        if holding is None:
            return
        self.adapters[holding] = adapter
        if give_up == 4:
            self.cache.abandon(holding)
            return
        self.cache.copies.clear()
        self.open.append((holding, tokens))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 2), count=st.sampled_from([1, 60, 128, 300]), cancel=st.integers(0, 4))
    def advance(self, which: int, count: int, cancel: int) -> None:
        """A step, or (one in five) one that is cut off between reserve and commit."""
        holding, tokens = stream = self.open[which % len(self.open)]
        count = min(count, len(tokens) - holding.length)
        if count < 1 or (pieces := self.cache.reserve(holding, count)) is None:
            return
        self.cache.check()
        if cancel == 4:
            self.close(stream)
            return
        for piece in pieces:
            base = piece.start - piece.start % 128
            assert len(piece.pages) == (0 if (piece.start + piece.count) % 128 else 1 if base else 1 + self.lead_pages)
            for page in piece.pages:
                self.written[page] = (page != piece.seal, self.adapters[holding], tuple(tokens[base : base + 128]))
        self.cache.commit(holding, tokens)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 2), guessed=st.integers(1, 9), right=st.integers(0, 9), cancel=st.integers(0, 4))
    def guess_ahead(self, which: int, guessed: int, right: int, cancel: int) -> None:
        """A step of one certain row and guessed ones, of which some turn out right."""
        holding, tokens = stream = self.open[which % len(self.open)]
        start = holding.length
        guessed = min(guessed, len(tokens) - start - 1, 126 - start % 128)
        if guessed < 1 or self.cache.reserve(holding, 1) is None:
            return
        [piece] = self.cache.resize(holding, guessed)
        assert (piece.start, piece.count, piece.pages) == (start, 1 + guessed, ())
        self.cache.check()
        if cancel == 4:
            self.close(stream)
            return
        right = min(right, guessed)
        self.cache.resize(holding, right - guessed)
        self.cache.commit(holding, tokens[: start + 1 + right])
        assert holding.length == start + 1 + right

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 2), count=st.sampled_from([1, 60, 128]), end=st.sampled_from(["commit", "retract", "close", "close both"]))
    def two_steps(self, which: int, count: int, end: str) -> None:
        """One step is prepared while the one before it runs."""
        holding, tokens = stream = self.open[which % len(self.open)]
        start = holding.length
        count = min(count, len(tokens) - start - 1)
        if count < 1 or (first := self.cache.reserve(holding, count)) is None:
            return
        before = list(holding.pending)
        if (second := self.cache.reserve(holding, 1)) is None:
            assert holding.pending == before
            self.cache.check()
            self.close(stream)
            return
        [after] = second
        assert (after.start, after.count) == (start + count, 1)
        assert (after.tail == first[-1].tail) == (not first[-1].pages)
        self.cache.check()
        if end == "close both":
            self.close(stream)
            return
        for piece in (*first, after):
            base = piece.start - piece.start % 128
            for page in piece.pages:
                self.written[page] = (page != piece.seal, self.adapters[holding], tuple(tokens[base : base + 128]))
        if end == "retract":
            self.cache.retract(holding, second)
            assert holding.pending == before
            self.cache.check()
        self.cache.commit(holding, tokens[: start + count + 1], len(first))
        assert holding.length == start + count
        self.cache.check()
        if end == "commit":
            self.cache.commit(holding, tokens, 1)
            assert holding.length == start + count + 1
        if end == "close":
            self.close(stream)

    @precondition(lambda self: not self.open)
    @rule(kind=st.integers(0, 1))
    def twins(self, kind: int) -> None:
        """Two that compute the same segment side by side: the second one's pages are let go."""
        for _ in range(2):
            self.open_one([kind, kind], 10, 0)
        for which in range(len(self.open)):
            self.advance(which, 128, 0)

    @precondition(lambda self: not any(self.adapters[holding] for holding, _ in self.open))
    @rule()
    def forget(self) -> None:
        """The adapter is unloaded: nothing that is left in the index is its."""
        self.cache.forget("a")
        self.cache.check()
        assert not [page for page in self.cache.index.listed()[0] if self.written[page][1]]

    @rule(count=st.integers(0, 9))
    def lend(self, count: int) -> None:
        """Pages leave the pool; whoever holds one keeps it."""
        pages = self.cache.pages
        used, size = pages.total - pages.free - pages.cached, pages.total + pages.withdrawn
        lent = self.cache.lend(count)
        assert pages.withdrawn == len(lent) == min(count, size - used)
        assert pages.total == size - len(lent)
        for page in lent:  # its memory is somebody else's
            self.written.pop(page, None)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 2))
    def end(self, which: int) -> None:
        self.close(self.open[which % len(self.open)])

    def close(self, stream: Stream) -> None:
        self.cache.close(*stream)
        self.open.remove(stream)

    @invariant()
    def every_page_is_right(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        for holding, tokens in self.open:
            lead = self.lead_pages if holding.pages else 0
            expected = [(i < lead, max(i - lead, 0) * 128) for i in range(stream_pages(holding.length, self.lead_pages))]
            due = [(is_lead, self.adapters[holding], tuple(tokens[at : at + 128])) for is_lead, at in expected]
            assert [self.written[page] for page in holding.pages] == due

    def teardown(self) -> None:
        for stream in list(getattr(self, "open", [])):
            self.close(stream)
            self.cache.check()
        if hasattr(self, "cache"):
            while self.cache.index.evict_tail() or self.cache.index.evict_segment():
                self.cache.check()
            assert (self.cache.pages.free, self.cache.tails.free) == (self.cache.pages.total, self.cache.tails.total)


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class LeadLost(KVCache):
    """Forgets the lead page when a step is undone."""

    def _undo(self, holding, pieces):
        super()._undo(holding, [piece._replace(pages=piece.pages[-1:]) for piece in pieces])


class LeadKeptTwice(KVCache):
    """Lets only the own page go when an equal segment is there."""

    def _seal(self, holding, segment, pages):
        if self._prefix and (known := holding.node.children.get(segment)) and len(pages) > 1:
            self.pages.share(pages[0])
            assert known
        super()._seal(holding, segment, pages)


class LeadNotShared(KVCache):
    """A prefix hit takes references on own pages only."""

    def open(self, tokens, prompt, **options):
        holding = super().open(tokens, prompt, **options)
        if holding is not None and self._lead_pages and holding.pages:
            self.pages.drop(holding.pages[0])
        return holding


class HalfEvictingIndex(PrefixIndex):
    def _forget_node(self, node):
        node.pages = node.pages[-1:]
        super()._forget_node(node)


class HalfEvicted(KVCache):
    """Eviction frees the own page only."""

    def __init__(self, pages, tails, **options):
        super().__init__(pages, tails, **options)
        self.index = HalfEvictingIndex(self.pages, self.tails, options["cached_tails"])


class OnePageShort(KVCache):
    """Takes one page for the first segment, too."""

    def _take_pages(self, count):
        return super()._take_pages(1)


class SharedBetweenAdapters(KVCache):
    """One tree for all."""

    def open(self, tokens, prompt, **options):
        return super().open(tokens, prompt, **options | {"adapter": ""})


class ForgetfulIndex(PrefixIndex):
    def forget(self, adapter):
        self._roots.pop(adapter, None)


class RootAlone(KVCache):
    """Of an adapter that is gone, its segments stay listed."""

    def __init__(self, pages, tails, **options):
        super().__init__(pages, tails, **options)
        self.index = ForgetfulIndex(self.pages, self.tails, options["cached_tails"])


FAULTS = [LeadLost, LeadKeptTwice, LeadNotShared, HalfEvicted, OnePageShort, SharedBetweenAdapters, RootAlone]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: type[KVCache]) -> None:
    machine = type("Planted", (CacheMachine,), {"make": fault}).TestCase
    # Many examples: what is drawn depends on the modules that happen to be loaded, whose constants Hypothesis likes to try.
    machine.settings = settings(TestCache.settings, max_examples=1000, phases=[Phase.generate], database=None, derandomize=True)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        machine("runTest").runTest()


def test_slots_freed_last_are_taken_first_so_that_few_are_ever_touched() -> None:
    slots = Slots(5)
    assert slots.touched == 0
    held = [slots.take() for _ in range(3)]
    for slot in held:
        slots.drop(slot)
    assert {slots.take(), slots.take()} < set(held)
    assert slots.touched == 3


def test_slots_never_taken_are_withdrawn_first_and_come_back_to_be_taken_last() -> None:
    slots = Slots(5)
    held = [slots.take() for _ in range(3)]
    slots.drop(held[0])
    assert slots.withdraw(2) == [4, 3]
    assert (slots.total, slots.free, slots.touched, slots.withdrawn) == (3, 1, 3, 2)
    assert slots.withdraw(2) == [held[0]]
    assert (slots.total, slots.free, slots.touched, slots.withdrawn) == (2, 0, 2, 3)
    assert slots.take() is None
    slots.restore()
    assert (slots.total, slots.free, slots.touched, slots.withdrawn) == (5, 3, 2, 0)
    slots.drop(held[1])
    assert slots.take() == held[1]
    assert slots.touched == 2
    assert slots.take() == held[0]
    assert slots.touched == 3


def test_segments_used_longest_ago_are_lent_first_and_none_that_somebody_holds() -> None:
    cache = KVCache(4, 8, cached_tails=0)
    streams = [[kind] * 200 for kind in range(3)]
    pages = []
    for tokens in streams:
        cache.reserve(holding := cache.open(tokens, 200), 200)
        cache.commit(holding, tokens)
        pages += holding.pages
        cache.close(holding, tokens)
    held = cache.open(streams[0], 200)
    assert held.length == 128
    assert cache.lend(2) == [3, pages[1]]
    assert cache.open(streams[2], 200).length == 128
    assert cache.open(streams[1], 200).length == 0
    assert cache.lend(4) == [3, pages[1]]  # all that nobody holds
    assert cache.lend(0) == []
    assert cache.pages.free == 2
    cache.check()


def test_both_pages_or_none() -> None:
    cache = KVCache(3, 4, lead_pages=1, prefix=False)
    first, second = (cache.open([i] * 300, 300) for i in range(2))
    assert [len(piece.pages) for piece in cache.reserve(first, 130)] == [2, 0]
    assert cache.reserve(second, 128) is None
    assert cache.pages.free == 1
    cache.check()
    assert cache.fits(second, 127)
    assert not cache.fits(second, 128)


def test_a_tail_that_outlives_the_page_of_its_segment_serves_all_but_the_last_token() -> None:
    """The segment must be filled again, so that it is sealed again."""
    cache = KVCache(2, 4, cached_tails=4)
    tokens = list(range(128))
    cache.reserve(holding := cache.open(tokens, 128), 128)
    cache.commit(holding, tokens)
    cache.close(holding, tokens)
    assert cache.index.evict_segment()
    assert cache.open(tokens * 2, 256).length == 127
    cache.check()
