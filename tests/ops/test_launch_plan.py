"""Launch plans: every piece of work is done once, tiles fit, and what is not supported is declined by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop import codecs
from pitstop.cli import doctor_kernels
from pitstop.ops.attention import RAW16, Layout, Plane
from pitstop.ops.attention.plan import (
    GROUP,
    HEAD_DIMS,
    Heads,
    Merge,
    Plan,
    Schedule,
    Span,
    Unit,
    fixed,
    needed,
    plan,
    schedule,
)
from pitstop.ops.chip import A100, H200, resident_blocks

EIGHT = Heads(32, 8, 128)
DECODE = [Span(1, 16384)] * 32


def items(streams: list[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Of streams of (past, new) tokens: a row per segment that the new ones lie in."""
    found, row, table = [], 0, 0
    for past, new in streams:
        at = past
        while at < past + new:
            count = min(past + new, (at // 128 + 1) * 128) - at
            found.append((row, count, at, len(found), -1, table))
            row, at = row + count, at + count
        table += (past + new) // 128
    return found


def units(done: Schedule) -> list[Unit]:
    return [Unit._make(unit) for unit in done.units.tolist()]


@settings(deadline=None, max_examples=200)
@given(
    streams=st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 300)), min_size=1, max_size=4),
    segments=st.sampled_from([0, 1, GROUP, 2 * GROUP]),
    window=st.one_of(st.just(-1), st.integers(1, 700)),
    rows=st.integers(1, 40),
)
def test_every_row_meets_every_segment_that_it_sees_once(streams, segments, window, rows):
    work = items(streams)
    chosen = plan([Span(count, start + count) for _, count, start, _, _, _ in work], EIGHT, RAW16, H200)
    assert isinstance(chosen, Plan)
    done = schedule(work, replace(chosen, segments=segments, rows=rows), window)
    met = Counter((unit.row + r, segment) for unit in units(done) for r in range(unit.count) for segment in range(unit.first, unit.end))
    assert set(met.values()) == {1}
    for row, count, start, _, _, _ in work:
        for r in range(count):
            least = max(0, start + r - window + 1) // 128 if window >= 0 else 0
            assert all((row + r, segment) in met for segment in range(least, (start + r) // 128 + 1))


@settings(deadline=None, max_examples=100)
@given(past=st.integers(0, 6000), segments=st.sampled_from([1, GROUP, 2 * GROUP]), window=st.sampled_from([-1, 900, 3000]))
def test_parts_are_where_merge_looks_for_them(past, segments, window):
    """Each slot is written once; those of a row are one after the other, of segments or groups in order."""
    chosen = plan([Span(3, past + 3)], EIGHT, RAW16, A100)
    assert isinstance(chosen, Plan)
    done = schedule(items([(past, 3)]), replace(chosen, segments=segments, rows=2), window)
    written = []
    for unit in units(done):
        if unit.slot >= 0:
            groups = range(unit.first // GROUP, -(-unit.end // GROUP))
            written += [(unit.slot + i, unit.first if segments == 1 else group) for i, group in enumerate(groups)]
    assert sorted(slot for slot, _ in written) == list(range(done.slots))
    place = dict(written)
    for merge in map(Merge._make, done.merges.tolist()):
        assert [place[merge.slot + i] for i in range(merge.end - merge.first)] == list(range(merge.first, merge.end))
    assert done.per_group == (GROUP if segments == 1 else 1)
    alone = {unit.row + r for unit in units(done) if unit.slot < 0 for r in range(unit.count)}
    assert alone.isdisjoint(merge[0] for merge in done.merges.tolist())


@settings(deadline=None, max_examples=200)
@given(
    starts=st.lists(st.integers(0, 4095), min_size=1, max_size=5),
    segments=st.sampled_from([0, 1, GROUP, 2 * GROUP]),
    window=st.one_of(st.just(-1), st.integers(1, 1500)),
)
def test_what_decoded_streams_need_is_known_before_it_is_scheduled(starts, segments, window):
    chosen = plan([Span(1, 4096)] * len(starts), EIGHT, RAW16, H200)
    assert isinstance(chosen, Plan)
    chosen = replace(chosen, segments=segments)
    done = schedule(items([(start, 1) for start in starts]), chosen, window)
    assert needed(np.array(starts), chosen, window) == (len(done.units), len(done.merges), done.slots)


def test_short_work_is_shared_and_long_work_is_not():
    one = plan([Span(1, 4096)], EIGHT, RAW16, H200)
    many = plan([Span(1, 512)] * 256, EIGHT, RAW16, H200)
    assert isinstance(one, Plan)
    assert isinstance(many, Plan)
    assert one.segments == 1
    assert one.blocks >= H200.sms
    assert many.segments == 0


def test_a_decode_step_takes_the_smallest_tile_and_a_prefill_the_largest_that_fits():
    step, chunk = plan(DECODE, EIGHT, RAW16, H200), plan([Span(128, 128)], EIGHT, RAW16, H200)
    assert isinstance(step, Plan)
    assert isinstance(chunk, Plan)
    assert (step.columns, step.rows) == (16, 4)
    assert chunk.columns > step.columns
    assert step.warps == chunk.warps, "bits would depend on the plan"


@pytest.mark.parametrize("chip", [A100, H200], ids=["sm_80", "sm_90"])
@pytest.mark.parametrize("codec", ["raw16", "int8", "int4"])
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_plans_fit_their_chip_and_say_why(chip, codec, dim):
    layout = codecs.get(codec).layout
    for spans in (DECODE, [Span(128, 1024)], [Span(5, 300), Span(1, 9000)]):
        chosen = plan(spans, Heads(32, 8, dim), layout, chip)
        if dim == 80 and codec == "int4":
            assert chosen == "values of 4 bits with head_dim 80"
            continue
        assert isinstance(chosen, Plan)
        assert chosen.shared <= chip.shared_block
        assert chosen.resident >= 1
        assert len(chosen.why) >= 3


DECLINED = {
    "head_dim 72 is none of 64, 80": (Heads(8, 8, 72), RAW16),
    "33 query heads for one KV head are more than 32": (Heads(33, 1, 64), RAW16),
    "20 query heads for one KV head are more than the 16 columns of head_dim 256": (Heads(20, 1, 256), RAW16),
    "keys of 5 bits; it reads 4, 8, 16": (EIGHT, codecs.get("k5v4").layout),
    "keys are differences from token to token": (EIGHT, codecs.get("delta8").layout),
    "keys of 32 bits": (EIGHT, codecs.get("raw32").layout),
    "keys of 6 bits": (EIGHT, Layout(Plane(8, "channel"), Plane(4, "token"), lead=6)),
}


@pytest.mark.parametrize("reason", DECLINED)
def test_what_is_not_supported_is_declined_by_name(reason):
    heads, layout = DECLINED[reason]
    assert str(plan(DECODE, heads, layout, A100)).startswith(reason)
    if "columns" not in reason:
        assert str(fixed(DECODE, heads, layout, A100)).startswith(reason)


def test_resident_blocks_by_hand():
    assert resident_blocks(A100, 8, 128, 40 << 10) == 2  # by registers
    assert resident_blocks(A100, 8, 64, 80 << 10) == 2  # by shared memory
    assert resident_blocks(A100, 16, 32, 1024) == 4  # by warps
    assert resident_blocks(H200, 8, 255, 220 << 10) == 1


def test_doctor_prints_plans_for_both_chips():
    text = "\n".join(doctor_kernels.plans())
    for part in ("sm_80", "sm_90", "decode of 32 at 16,384", "columns:", "stages:", "waves", "int4"):
        assert part in text
