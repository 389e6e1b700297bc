"""The kernels that work row by row compiled for GPUs that are not here: registers, shared memory, wide loads, one order of sums."""

from __future__ import annotations

import os
import re

import pytest

from pitstop import codecs
from pitstop.ops import row_ahead
from pitstop.ops.chip import A100, H200

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")

CHIPS = {"sm_80": A100, "sm_90": H200}
LAYOUTS = {name: codecs.get(name).layout for name in ("raw16", "int8", "int4", "adaptive8")}
EIGHT = row_ahead.launches(4096, 14336, 128, 128256, LAYOUTS)
QUICK = ["rms_norm of 4096", "silu_mul", "rotate, halves", "hadamard", "greedy, logits", "draw", "append", "seal int4"]
SHAPES = {64: (576, 1536), 80: (2560, 10240), 96: (3072, 8192), 128: (4096, 14336), 256: (16384, 24576)}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", QUICK)
def test_it_compiles_as_it_should(name, chip):
    launch = EIGHT[name]
    assert row_ahead.objections(row_ahead.compiled(launch, CHIPS[chip]), launch, CHIPS[chip]) == []


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("head_dim", SHAPES)
def test_the_grid_compiles_as_it_should(head_dim, chip):
    layouts = {name: layout for name, layout in LAYOUTS.items() if head_dim % layout.values.block == 0}
    launches = row_ahead.launches(*SHAPES[head_dim], head_dim, 128256, layouts)
    wrong = {name: row_ahead.objections(row_ahead.compiled(launch, CHIPS[chip]), launch, CHIPS[chip]) for name, launch in launches.items()}
    assert {name: reasons for name, reasons in wrong.items() if reasons} == {}
    assert len(launches) >= 19


def test_a_sum_has_one_order_in_all_norms_of_a_width():
    """What a norm adds up lies on threads in the same way whatever else the kernel does: so a norm is a residual's norm to the bit."""
    found = set()
    for name in ("rms_norm of 4096", "add_rms_norm of 4096", "layer_norm of 4096"):
        text = row_ahead.compiled(EIGHT[name], H200).ttgir
        layouts = dict(re.findall(r"^(#\w+) = (#ttg\.blocked<.*>)$", text, re.MULTILINE))
        found |= {layouts[layout] for layout in re.findall(r"tensor<\d+x\d+xf32, (#\w+)>\) -> tensor<\d+xf32, #ttg\.slice", text)}
    assert len(found) == 1


def test_a_block_waits_before_it_reads_what_its_threads_noted():
    """The interpreter has no threads: only the compiled form shows it."""
    text = row_ahead.compiled(EIGHT["draw"], H200).ttgir
    events = re.findall(r"tt\.(store|load) .*tensor<\d+x!tt\.ptr<i64>|\b(barrier)\b", text)
    events = ["".join(event) for event in events]
    first_read = events.index("load")
    assert events[:first_read] == ["store", "store", "barrier"]
    assert "store" not in events[first_read:]


def test_a_tile_whose_registers_spill_is_objected_to():
    launch = EIGHT["rms_norm of 4096"]
    constants = launch.constants | {"COLUMNS": 8192, "WIDTH": 8192}
    planted = launch._replace(constants=constants, options=launch.options | {"num_warps": 1})
    wrong = row_ahead.objections(row_ahead.compiled(planted, A100), planted, A100)
    assert any("are spilled" in reason for reason in wrong)


def test_numbers_that_may_lie_anywhere_are_objected_to():
    launch = EIGHT["rms_norm of 4096"]
    planted = launch._replace(constants=launch.constants | {"UNIT": 1})
    assert any("16 at a time" in reason for reason in row_ahead.objections(row_ahead.compiled(planted, A100), planted, A100))
