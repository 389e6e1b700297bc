"""Launches of a step: made once, in the same place for as long as their size lasts, and of nothing where there is nothing to do."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import interpret

from pitstop import codecs
from pitstop.ops.attention import RAW16
from pitstop.ops.attention.launches import IDLE_MERGE, IDLE_UNIT, Launches
from pitstop.ops.attention.plan import Heads, needed
from pitstop.types import KVShape

WINDOW = 300


def made(windows: tuple[int, ...] = (-1, WINDOW)) -> Launches:
    return Launches(RAW16, Heads(32, 8, 128), windows, torch.device("cpu"))


def decoded(starts: list[int]) -> np.ndarray:
    """Items of streams that decode at these positions."""
    return np.array([(row, 1, start, row, -1, 40 * row) for row, start in enumerate(starts)], np.int32)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_sized_launches_do_every_step_s_work_once_and_nothing_else(data):
    rows, longest = data.draw(st.sampled_from([1, 2, 8, 40])), data.draw(st.sampled_from([1, 4, 32]))
    drawn = st.lists(st.integers(0, longest * 128 - 1), min_size=rows, max_size=rows)
    launches, first = made(), data.draw(drawn)
    sized = launches.sized(first)
    addresses = set()
    for starts in (first, [0] * rows, data.draw(st.permutations(first))):
        launches.load(decoded(starts), sized)
        for window in (-1, WINDOW):
            launch = launches[window]
            addresses.add((window, launch.work.data_ptr(), launch.merges.data_ptr(), len(launch.work)))
            units = [tuple(unit) for unit in launch.work.tolist()]
            met = Counter((row, segment) for row, count, *_, first, end, _ in units for segment in range(first, end) if count)
            least = [max(0, start - window + 1) // 128 if window > 0 else 0 for start in starts]
            assert met == Counter((row, segment) for row, start in enumerate(starts) for segment in range(least[row], start // 128 + 1))
            assert all(unit == IDLE_UNIT for unit in units if not unit[1])
            shared = {row for row, _, _, _, _, _, _, slot in units if slot >= 0}
            assert {merge[0] for merge in launch.merges.tolist()} - {-1} == shared
            assert all(tuple(merge) == IDLE_MERGE for merge in launch.merges.tolist() if merge[0] < 0)
    assert len(addresses) == 2
    for window, chosen, sizes in sized:
        for need, there in zip(needed(np.array(first), chosen, window), sizes, strict=True):
            assert need <= there <= max(2 * need + rows, rows)


def test_steps_that_are_launched_alike_share_them():
    launches = made((-1,))
    alike = [[100] * 64, [5000] * 64, list(range(0, 6400, 100))]
    assert len({launches.sized(starts) for starts in alike}) == 1, "enough streams for all of a chip: a block each, of any length"
    assert len({launches.sized([start]) for start in (0, 127, 128, 255, 256, 500, 600, 1000)}) == 4
    launches.load(decoded(alike[0]), launches.sized(alike[0]))
    before = launches[-1].work
    launches.load(decoded(alike[1]), launches.sized(alike[1]))
    assert launches[-1].work.data_ptr() == before.data_ptr()


def test_a_long_stream_among_short_ones_is_shared_by_blocks():
    [sized] = made((-1,)).sized([16000] + [300] * 15)
    assert sized.plan.segments in (1, 8)
    assert sized.sizes.units <= 16 * 16


def test_what_does_not_fit_is_refused():
    launches = made()
    with pytest.raises(ValueError, match="does not fit"):
        launches.load(decoded([512]), launches.sized([511]))
    with pytest.raises(ValueError, match="does not fit"):
        launches.load(decoded([5, 5]), launches.sized([5]))
    launches.load(decoded([9000]), launches.sized([5]))  # one block that reads all there is


def test_any_other_step_is_planned_by_itself():
    launches = made()
    items = np.array([(0, 40, 300, 0, -1, 0), (40, 1, 2000, 1, -1, 3)], np.int32)
    launches.load(items)
    rows = {row + r for row, count, *_ in launches[-1].work.tolist() for r in range(count)}
    assert rows == set(range(41))
    assert launches[0] is None, "a window of nothing launches nothing"


def test_where_these_kernels_do_not_run_there_are_none():
    shape = KVShape(2, 2, 64)
    assert codecs.get("raw16").launches(shape, 4, (-1,), "cpu") is None


@pytest.mark.slow
def test_a_sized_launch_gives_the_bits_of_the_step_s_own():
    found = interpret("interpreted_attention.py", "sized")["sized"]
    assert len(found) == 8
    assert {name: count for name, count in found.items() if count} == {}


@pytest.mark.slow
def test_a_merge_of_no_row_writes_nothing():
    found = interpret("interpreted_attention.py", "--plant", "tl.where(row < 0, 0, DIM)", "DIM", "sized")["sized"]
    assert any(found.values()), found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_whole_model_s_captured_steps_are_its_eager_ones():
    """Kernels in the interpreter, graphs by tape.py: steps of one to three streams that grow over a segment's end."""
    found = interpret("interpreted_decode.py", "steps")["steps"]
    assert found["log-probabilities that differ"] == found["stored bytes that differ"] == 0
    assert found["graphs"] >= 4, "one stream and four, before and after a segment's end"
    assert found["replays"] > 8
    assert found["largest error"] <= 0.02, "against the CPU's own attention"
