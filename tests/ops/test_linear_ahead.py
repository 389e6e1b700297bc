"""The kernel of products compiled for GPUs that are not here: registers, shared memory, tensor cores, wide loads, bank conflicts, and
faults."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest

from pitstop.ops import banks
from pitstop.ops.ahead import Compiled, conflicts, objections, resident
from pitstop.ops.chip import A100, H200
from pitstop.ops.linear import ahead
from pitstop.ops.linear.plan import Plan, Shape, plan, tile

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")

CHIPS = {"sm_80": A100, "sm_90": H200}
DECODE, SHARED, PREFILL = (1, 28672, 4096), (8, 4096, 14336), (2048, 4096, 4096)
QUICK = [("4", "sm_80", SHARED), ("4", "sm_90", DECODE), ("8", "sm_90", PREFILL), ("bf16", "sm_80", DECODE)]
SHAPES = [DECODE, SHARED, PREFILL, (64, 4096, 4096), (24, 6144, 4096), (1, 49152, 576), (512, 576, 1536)]
CODES = ("4", "8", "int8", "f16", "bf16")


def check(codes: str, chip: str, sizes: tuple[int, int, int]) -> None:
    shape = Shape(*sizes, codes)
    chosen = plan(shape, CHIPS[chip])
    compiled = ahead.compile_plan(chosen, shape, CHIPS[chip])
    assert objections(compiled, chosen, CHIPS[chip]) == []
    assert resident(compiled, chosen, CHIPS[chip]) >= 1


@pytest.mark.parametrize(("codes", "chip", "sizes"), QUICK, ids=str)
def test_what_is_planned_compiles_as_planned(codes, chip, sizes):
    check(codes, chip, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("codes", CODES)
def test_the_grid_compiles_as_planned(codes, chip, sizes):
    check(codes, chip, sizes)


@pytest.mark.parametrize("chip", CHIPS)
def test_bits_do_not_depend_on_the_plan(chip):
    """What sums are made of is the same for few rows, which the kernel rounds, and for many (the interpreter cannot see tensor cores)."""
    found = set()
    for sizes in (DECODE, PREFILL):
        shape = Shape(*sizes, "4")
        found |= {ahead.arithmetic(ahead.compile_plan(plan(shape, CHIPS[chip]), shape, CHIPS[chip]))}
    assert len(found) == 1


@pytest.mark.parametrize(("chip", "step"), [("sm_80", 4), ("sm_90", 2)])
def test_weights_go_from_memory_to_the_tensor_cores_within_their_threads(chip, step):
    """The layout has Triton's neighbours in a thread; no number of a weight goes through shared memory."""
    shape = Shape(*DECODE, "4")
    chosen = plan(shape, CHIPS[chip])
    compiled = ahead.compile_plan(chosen, shape, CHIPS[chip])
    assert {width for _, *widths in ahead.arithmetic(compiled) for width in widths} == {str(step)}
    assert moved(compiled, chosen) == []


def moved(compiled: Compiled, chosen: Plan) -> list[str]:
    """Moves of the numbers of weights between threads, or into shared memory or out of it."""
    of_weights = f"tensor<{chosen.outs}x128xf16"
    return [
        line for line in compiled.ttgir.splitlines() if re.search(r"convert_layout|local_(alloc|load|store)", line) and of_weights in line
    ]


def test_the_other_chip_s_order_would_go_through_shared_memory(monkeypatch):
    shape = Shape(*DECODE, "4")
    chosen = plan(shape, A100)
    right = ahead.compile_plan(chosen, shape, A100)
    monkeypatch.setattr(ahead, "Form", lambda codes, step: replace(FORM, codes=codes, step=6 - step))
    wrong = ahead.compile_plan(chosen, shape, A100)
    assert len(re.findall("convert_layout|local_load", wrong.ttgir)) > len(re.findall("convert_layout|local_load", right.ttgir))


FORM = ahead.Form("4", 2)


def test_planted_faults_are_objected_to():
    """A tile over the limit; one whose registers spill."""
    shape = Shape(*PREFILL, "4")
    over = tile(shape, A100, 128, 128, 6, 1, True)
    assert any("pass the block's" in reason for reason in objections(ahead.compile_plan(over, shape, A100), over, A100))
    wide = tile(shape, A100, 128, 256, 2, 1, True)
    assert any("are spilled" in reason for reason in objections(ahead.compile_plan(wide, shape, A100), wide, A100))


@pytest.mark.parametrize("chip", CHIPS)
def test_no_banks_conflict(chip):
    for codes, sizes in (("4", DECODE), ("4", PREFILL), ("bf16", SHARED)):
        shape = Shape(*sizes, codes)
        assert conflicts(ahead.compile_plan(plan(shape, CHIPS[chip]), shape, CHIPS[chip]))[0] == 0


def test_all_words_in_one_load_would_conflict():
    """Threads then lie two units apart in shared memory, which is why the kernel loads unit by unit."""
    apart = banks.Shared((3, 0, 2, 1), 1, 1, 1)
    layout = banks.blocked((1, 1, 1, 4), (1, 1, 32, 1), (1, 8, 1, 1), (3, 2, 1, 0), (2, 8, 32, 4))
    needed, best = banks.passes(layout, apart, (2, 8, 32, 4), 4)
    assert needed == 2 * best
    side_by_side = banks.Shared((2, 1, 0), 1, 1, 1)
    layout = banks.blocked((1, 1, 4), (1, 32, 1), (8, 1, 1), (2, 1, 0), (8, 32, 4))
    assert banks.passes(layout, side_by_side, (8, 32, 4), 4) == (4, 4)
