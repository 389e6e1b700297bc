"""The kernels of routing and experts compiled for GPUs that are not here."""

from __future__ import annotations

import os

import pytest

from pitstop.ops.ahead import objections
from pitstop.ops.chip import A100, H200
from pitstop.ops.linear.plan import Shape, plan
from pitstop.ops.moe import ahead

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")

CHIPS = {"sm_80": A100, "sm_90": H200}
SIZES = {"decode": (8 * 8, 1536, 2048), "prefill": (2048 * 8, 2048, 768)}
"""Choices, outputs and inputs of 128 experts of which each row has 8."""


def check(codes: str, chip: str, step: str) -> None:
    shape = Shape(*SIZES[step], codes, experts=128)
    chosen = plan(shape, CHIPS[chip])
    compiled = ahead.compile_plan(chosen, shape, CHIPS[chip])
    assert objections(compiled, chosen, CHIPS[chip]) == []


@pytest.mark.parametrize(("codes", "chip", "step"), [("4", "sm_90", "decode"), ("bf16", "sm_80", "prefill")])
def test_what_is_planned_compiles_as_planned(codes, chip, step):
    check(codes, chip, step)


@pytest.mark.slow
@pytest.mark.parametrize("step", SIZES)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("codes", ["4", "8", "int8", "f16", "bf16"])
def test_the_grid_compiles_as_planned(codes, chip, step):
    check(codes, chip, step)


@pytest.mark.parametrize("chip", CHIPS)
def test_the_kernels_around_it_spill_nothing(chip):
    compiled = ahead.compile_others(128, 8, CHIPS[chip])
    assert {name: one.frame for name, one in compiled.items()} == dict.fromkeys(("route", "gather", "cut", "combine"), 0)
    assert all(one.shared <= CHIPS[chip].shared_block for one in compiled.values())
