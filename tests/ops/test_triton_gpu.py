"""The Triton kernels on a GPU: the interpreter's checks, and equal bits whatever the launch looks like."""

from __future__ import annotations

import interpreted_attention as interpreted
import pytest
import torch
from op_bits import assert_same_bits

from pitstop.ops.attention import triton

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("check", ["layouts", "dims", "scores"])
def test_answers_are_the_reference_s(check):
    assert {name: error for name, error in interpreted.CHECKS[check]().items() if not error <= triton.TOLERANCE} == {}


def test_what_no_row_sees_changes_no_bit():
    assert {name: count for name, count in interpreted.unseen().items() if count} == {}


@pytest.mark.parametrize("name", interpreted.LAYOUTS)
def test_bits_do_not_depend_on_tile_stages_or_splits(name):
    layout = interpreted.LAYOUTS[name]
    inputs = interpreted.small(layout, [(1300, 100), (2100, 1), (10, 1)], dim=128, share=4, kv_heads=2)
    expected = interpreted.launched(inputs, layout, segments=0, columns=16, rows=4)
    for segments in (0, 1, 8, 16):
        for columns in (16, 32):
            for stages in (1, 2):
                found = interpreted.launched(inputs, layout, segments=segments, columns=columns, rows=columns // 4, stages=stages)
                assert_same_bits(found, expected)


def test_bits_do_not_depend_on_company():
    layout = interpreted.LAYOUTS["8 bits"]
    shape = {"dim": 128, "share": 4, "kv_heads": 2}
    alone = interpreted.answer(interpreted.small(layout, [(1300, 100)], **shape), layout)
    company = interpreted.answer(interpreted.small(layout, [(1300, 100), (300, 1), (0, 200)], **shape), layout)
    assert_same_bits(company[: len(alone)], alone)
