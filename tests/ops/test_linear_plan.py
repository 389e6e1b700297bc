"""Launch plans of products: every part is added once, tiles fit, and reasons are given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.cli import doctor_kernels
from pitstop.ops.chip import A100, H100_PCIE, H200
from pitstop.ops.linear import lines
from pitstop.ops.linear.plan import BLOCK, MOST_PARTS, Shape, fixed, parts, plan, step_bytes

CODES = ("4", "8", "int8", "f16", "bf16")
CHIPS = {"A100": A100, "H100": H100_PCIE, "H200": H200}


@given(depth=st.integers(1, 60000))
def test_parts_cover_all_blocks_once(depth):
    count, per_part = parts(depth)
    blocks = -(-depth // BLOCK)
    assert 1 <= count <= MOST_PARTS
    assert (count - 1) * per_part < blocks <= count * per_part


def test_parts_are_the_matrix_s_alone():
    assert parts(576) == (1, 5)
    assert parts(4096) == (4, 8)
    assert parts(14336) == (8, 14)


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("chip", CHIPS)
def test_plans_fit_their_chip_and_cover_the_product(chip, codes):
    for rows in (1, 8, 17, 64, 300, 2048):
        for outs, depth in ((4096, 4096), (28672, 4096), (4096, 14336), (49152, 576), (24, 64)):
            shape = Shape(rows, outs, depth, codes)
            chosen = plan(shape, CHIPS[chip])
            assert chosen.shared <= CHIPS[chip].shared_block
            assert chosen.resident >= 1
            assert chosen.warps == chosen.outs // 16, "a warp has 16 outputs"
            assert chosen.grid[0] * chosen.outs >= outs > (chosen.grid[0] - 1) * chosen.outs
            assert chosen.grid[1] * chosen.columns >= rows > (chosen.grid[1] - 1) * chosen.columns
            assert 1 <= chosen.splits <= parts(depth)[0]
            assert len(chosen.why) == 4


def test_few_outputs_share_their_parts_and_many_do_not():
    """Of 4,096 outputs there are too few tiles for 132 SMs; of a prefill there are enough."""
    assert plan(Shape(1, 4096, 4096, "4"), H200).splits > 1
    assert plan(Shape(2048, 4096, 4096, "4"), H200).splits == 1


def test_columns_are_as_many_as_there_are_rows():
    columns = [plan(Shape(rows, 4096, 4096, "bf16"), H200).columns for rows in (1, 16, 17, 2048)]
    assert columns[:3] == [16, 16, 32]
    assert columns[3] >= 64


@pytest.mark.parametrize("codes", CODES)
def test_bytes_of_a_step_are_the_layout_s(codes):
    assert step_bytes(16, codes) == 4 * lines.Form(codes, 2).words


def test_the_fixed_tile_is_the_same_for_all():
    first, second = (fixed(Shape(rows, 4096, 4096, "4"), H200) for rows in (1, 1000))
    assert (first.outs, first.columns, first.stages, first.splits) == (second.outs, second.columns, second.stages, second.splits)


def test_doctor_prints_plans_of_products():
    text = "\n".join(doctor_kernels.plans())
    for part in ("28672 of 4096", "4 parts of 1024 inputs", "outputs by 16 rows a tile", "the busiest SM reads"):
        assert part in text
