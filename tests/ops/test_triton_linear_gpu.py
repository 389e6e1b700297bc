"""The Triton kernels of products and experts on a GPU: the interpreter's checks, and equal bits whatever the launch looks like."""

from __future__ import annotations

import interpreted_experts
import interpreted_linear
import pytest
import torch
from test_triton_experts import wrong

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("check", ["answers", "more_answers", "edges"])
def test_products_are_the_reference_s(check):
    assert {name: error for name, error in interpreted_linear.CHECKS[check]().items() if not error <= 1} == {}


def test_bits_do_not_depend_on_tile_sharing_or_company():
    found = interpreted_linear.bits() | interpreted_linear.more_bits() | interpreted_linear.stacks()
    assert {name: count for name, count in found.items() if not count <= (1 if name.endswith("errors") else 0)} == {}


def test_experts_are_products_one_by_one():
    assert {name: count for name, count in (interpreted_experts.mixtures() | interpreted_experts.more_mixtures()).items() if count} == {}
    assert {name: count for name, count in interpreted_experts.tiles().items() if count and name != "tiles"} == {}


def test_routes_are_the_reference_s():
    assert wrong(interpreted_experts.routes()) == {}
