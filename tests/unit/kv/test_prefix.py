"""The prefix index: nearest keys, eviction order, references."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pitstop.kv.prefix import Neighbours, PrefixIndex, common
from pitstop.kv.slots import Slots

short = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)


@given(st.lists(short, max_size=12), st.lists(short, max_size=4), short)
def test_nearest_shares_the_longest_prefix(keys: list, removed: list, query: tuple) -> None:
    neighbours: Neighbours[tuple] = Neighbours()
    for key in keys:
        neighbours.put(key, key)
    left = set(keys)
    for key in removed:
        if key in left:
            neighbours.remove(key)
            left.remove(key)
    found, shared = neighbours.nearest(query)
    assert shared == max((common(key, query) for key in left), default=0)
    assert (found is None) == (shared == 0)
    assert found is None or common(found, query) == shared


def index_of(pages: int, tails: int, max_tails: int = 8) -> PrefixIndex:
    return PrefixIndex(Slots(pages), Slots(tails), max_tails)


def put(index: PrefixIndex, node, first: int):
    """A segment that nobody but the index holds."""
    page = index._pages.take()
    child = index.insert(node, (first,) * 128, (page,))
    index._pages.drop(page)
    return child


def test_pages_go_leaf_first_and_oldest_first() -> None:
    index = index_of(4, 0)
    a = put(index, index.root, 1)
    ab = put(index, a, 2)
    c = put(index, index.root, 3)
    index.walk([1] * 128 + [2] * 128, 256)  # the a-b chain was used last
    order = []
    for _ in range(3):
        before = set(index.listed()[0])
        assert index.evict_segment()
        order += before - set(index.listed()[0])
    assert order == [*c.pages, *ab.pages, *a.pages]
    assert not index.evict_segment()


def test_a_page_in_use_stays() -> None:
    index = index_of(2, 0)
    page = index._pages.take()
    index.insert(index.root, (1,) * 128, (page,))
    assert not index.evict_segment()
    index._pages.drop(page)
    assert index._pages.cached == 1
    assert index.evict_segment()
    assert index._pages.free == 2


def test_a_segment_of_two_pages_goes_as_one() -> None:
    index = index_of(2, 0)
    pages = (index._pages.take(), index._pages.take())
    index.insert(index.root, (1,) * 128, pages)
    assert index.walk([1] * 129, 128)[1:] == (list(pages), 128)
    index._pages.drop(pages[0])
    assert not index.evict_segment()
    index._pages.drop(pages[1])
    assert index.evict_segment()
    assert index._pages.free == 2


def test_a_longer_tail_replaces_a_shorter_one_and_the_oldest_goes_over_the_limit() -> None:
    index = index_of(1, 4, max_tails=2)
    slots = [index._tail_slots.take() for _ in range(4)]
    index.keep_tail(index.root, (1, 2), slots[0])
    index.keep_tail(index.root, (1, 2, 3), slots[1])
    assert index.listed()[1] == [slots[1]]
    index.keep_tail(index.root, (1,), slots[2])  # served already
    assert index.listed()[1] == [slots[1]]
    index.keep_tail(index.root, (5,), slots[2])
    index.tail(index.root, (1, 2, 9))  # used: now the other is the oldest
    index.keep_tail(index.root, (6,), slots[3])
    assert set(index.listed()[1]) == {slots[1], slots[3]}


def test_one_slot_is_listed_once_as_it_grows() -> None:
    index = index_of(1, 2)
    mine, other = index._tail_slots.take(), index._tail_slots.take()
    index.keep_tail(index.root, (1, 2), mine)
    index.keep_tail(index.root, (1, 2, 3, 9), other)  # replaces mine: it serves the same
    index.keep_tail(index.root, (1, 2, 3, 4), mine)
    index.keep_tail(index.root, (1, 2, 3, 4, 5), mine)
    assert sorted(index.listed()[1]) == sorted([mine, other])


def test_an_adapter_has_a_tree_of_its_own_and_takes_it_along() -> None:
    index = index_of(6, 4)
    mine, own = index.root_of("a@1"), index.root
    assert index.root_of("") is own
    assert index.root_of("a@1") is mine is not own
    first = put(index, mine, 1)
    put(index, first, 2)
    kept = put(index, own, 1)
    tail = index._tail_slots.take()
    index.keep_tail(first, (7, 8), tail)
    index._tail_slots.drop(tail)
    tokens = [1] * 128 + [2] * 128
    assert [index.walk(tokens, 256, root)[2] for root in (mine, own, index.root_of("b@2"))] == [256, 128, 0]
    index.forget("a@1")
    index.forget("never@seen")
    assert index.listed() == ([*kept.pages], [])
    assert (index._pages.free, index._tail_slots.free) == (5, 4)
    assert index.walk(tokens, 256, index.root_of("a@1"))[2] == 0


def test_eviction_reaches_every_tree() -> None:
    index = index_of(3, 0)
    for adapter in ("", "a@1", "b@2"):
        put(index, index.root_of(adapter), 1)
    assert [index.evict_segment() for _ in range(4)] == [True, True, True, False]
    assert index._pages.free == 3
