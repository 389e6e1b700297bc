"""The attention kernel compiled for GPUs that are not here: registers, shared memory, tensor cores, wide loads, bank conflicts, and
faults."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

import pytest

from pitstop import codecs
from pitstop.ops import ahead as compiler
from pitstop.ops import banks
from pitstop.ops.attention import ahead
from pitstop.ops.attention.plan import Heads, Plan, Span, fixed, plan
from pitstop.ops.attention.triton import Scores
from pitstop.ops.chip import A100, H200

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")

CHIPS = {"sm_80": A100, "sm_90": H200}
EIGHT = Heads(32, 8, 128)
SPANS = {"decode": [Span(1, 4096)] * 32, "prefill": [Span(128, 1024)] * 8}
QUICK = [("raw16", "sm_80", "decode"), ("raw16", "sm_90", "prefill"), ("int8", "sm_80", "decode"), ("int4", "sm_90", "decode")]
GRID = [(codec, chip, step) for codec in ("raw16", "int8", "int4") for chip in CHIPS for step in SPANS]
HEADS = [Heads(9, 3, 64), Heads(32, 8, 80), Heads(32, 8, 96), EIGHT, Heads(8, 4, 256)]


def planned(codec: str, chip: str, step: str, heads: Heads = EIGHT) -> Plan:
    chosen = plan(SPANS[step], heads, codecs.get(codec).layout, CHIPS[chip])
    assert isinstance(chosen, Plan), chosen
    return chosen


@cache
def as_planned(codec: str, chip: str, step: str, heads: Heads = EIGHT, scores: Scores | None = None) -> compiler.Compiled:
    """Several tests look at the same one."""
    return ahead.compile_plan(planned(codec, chip, step, heads), heads, codecs.get(codec).layout, CHIPS[chip], scores)


def check(codec: str, chip: str, step: str, *shape: Heads | Scores) -> None:
    """shape: what `as_planned` takes."""
    chosen, compiled = planned(codec, chip, step, *shape[:1]), as_planned(codec, chip, step, *shape)
    assert compiler.objections(compiled, chosen, CHIPS[chip]) == []
    assert compiler.resident(compiled, chosen, CHIPS[chip]) >= 1


@pytest.mark.parametrize(("codec", "chip", "step"), QUICK)
def test_what_is_planned_compiles_as_planned(codec, chip, step):
    check(codec, chip, step)


@pytest.mark.slow
@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: f"{heads.head_dim}")
@pytest.mark.parametrize(("codec", "chip", "step"), GRID)
def test_the_grid_compiles_as_planned(codec, chip, step, heads):
    if isinstance(reason := plan(SPANS[step], heads, codecs.get(codec).layout, CHIPS[chip]), str):
        assert reason == "values of 4 bits with head_dim 80"
        return
    check(codec, chip, step, heads)


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("scores", [Scores(1.0, window=4096), Scores(1.0, softcap=30.0, temperature_length=1024)], ids=["window", "cap"])
def test_windows_and_caps_compile_as_planned(chip, scores):
    for step in SPANS:
        check("raw16", chip, step, EIGHT, scores)


@pytest.mark.parametrize("chip", CHIPS)
def test_bits_do_not_depend_on_the_plan(chip):
    """What sums are made of is the same in every tile (the interpreter cannot see tensor cores)."""
    assert len({ahead.arithmetic(as_planned("raw16", chip, step)) for step in SPANS}) == 1


def test_other_warps_would_change_bits():
    chosen = planned("raw16", "sm_80", "decode")
    assert chosen.warps == 8
    other = ahead.compile_plan(replace(chosen, warps=4), EIGHT, codecs.get("raw16").layout, A100)
    assert ahead.arithmetic(other) != ahead.arithmetic(as_planned("raw16", "sm_80", "decode"))


def test_planted_faults_are_objected_to():
    """A tile over the limit; one whose registers spill."""
    raw, large = codecs.get("raw16").layout, Heads(8, 4, 256)
    over = replace(planned("raw16", "sm_80", "decode", large), stages=2)
    assert any("pass the block's" in reason for reason in compiler.objections(ahead.compile_plan(over, large, raw, A100), over, A100))
    wide = replace(planned("raw16", "sm_90", "prefill"), columns=64, rows=16)
    assert any("are spilled" in reason for reason in compiler.objections(ahead.compile_plan(wide, EIGHT, raw, H200), wide, H200))


@pytest.mark.parametrize("chip", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90"])
def test_the_planner_s_tile_has_fewer_bank_conflicts_than_the_fixed_one(chip):
    layout = codecs.get("int4").layout
    other = ahead.compile_plan(fixed(SPANS["decode"], EIGHT, layout, CHIPS[chip]), EIGHT, layout, CHIPS[chip])
    assert compiler.conflicts(as_planned("int4", chip, "decode"))[0] < compiler.conflicts(other)[0]


# ---- the models of the compiled form, by hand


SQUARE = (32, 32)
ROWS = banks.blocked((1, 4), (4, 8), (1, 1), (1, 0), SQUARE)  # fp32: each thread 16 bytes of a row
COLUMNS = banks.blocked((1, 1), (32, 1), (1, 1), (0, 1), SQUARE)  # each lane a row


def test_conflicts_by_hand():
    plain = banks.Shared((1, 0), 1, 1, 1)
    assert banks.passes(ROWS, plain, SQUARE, 4) == (32, 32)  # 8 groups of 4 rows, four passes of 8 lanes
    assert banks.passes(COLUMNS, plain, SQUARE, 4) == (8 * 32, 32)  # 16 bytes a lane, eight lanes at once, all in the same banks
    swizzled = banks.Shared((1, 0), 1, 1, 32)
    assert banks.passes(COLUMNS, swizzled, SQUARE, 4) == (32, 32)
    half = banks.Shared((1, 0), 1, 1, 16)
    assert banks.passes(COLUMNS, half, SQUARE, 4) == (2 * 32, 32)


def test_conflicts_of_matrix_loads_by_hand():
    """Eight rows of 16 bytes: 128 bytes apart they share banks, unless they are exchanged."""
    operand = banks.operand(0, (1, 1), 2, (16, 64))
    assert banks.passes(operand, banks.Shared((1, 0), 8, 1, 1), (16, 64), 2, matrix=True) == (8 * 16, 16)
    assert banks.passes(operand, banks.Shared((1, 0), 8, 1, 8), (16, 64), 2, matrix=True) == (16, 16)


@pytest.mark.parametrize(
    "layout",
    [
        banks.blocked((1, 8), (4, 8), (2, 1), (1, 0), (64, 64)),
        banks.tensor_core((4, 1), (16, 8), (64, 64)),
        banks.operand(0, (4, 1), 2, (64, 64)),
    ],
)
def test_layouts_hold_each_element_of_a_warp_once(layout):
    held = [banks._element(layout, r, lane) for r in range(1 << len(layout.register)) for lane in range(32)]
    assert len(set(held)) == len(held)
    assert all(0 <= row < 64 and 0 <= column < 64 for row, column in held)


def test_an_unknown_layout_is_refused():
    text = "#a = #ttg.padded_shared<{order = [1, 0]}>\n ttg.local_load %x : <4x4xf16, #a, #smem> -> tensor<4x4xf16, #b>\n"
    with pytest.raises(ValueError, match="shared layout padded_shared"):
        banks.accesses(text)


def test_wide_loads_are_told_from_narrow_ones():
    wide = "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [ %rd1 + 0 ];\ncp.async.cg.shared.global [ %r5 + 0 ], [ %rd2 + 0 ], 0x10, %r6;\n"
    assert compiler.wide_share(wide) == 1
    assert compiler.wide_share(wide + "ld.global.L1::evict_last.v2.b32 {%r1, %r2}, [ %rd1 ];\n" * 4) == 0.5
