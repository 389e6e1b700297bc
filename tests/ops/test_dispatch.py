"""One place chooses the backend, explains itself when it cannot, and says why the native kernels are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pitstop.errors import Unsupported
from pitstop.ops import attention, dispatch, linear
from pitstop.ops.dispatch import Declined, Op


def test_the_error_lists_shapes_and_everything_tried():
    op = Op("halve", cpu=lambda x, n: Declined("too cold"), ref=lambda x, n: Declined(f"n is {n}"))
    with pytest.raises(Unsupported) as caught:
        op(torch.zeros(2, 3), 7)
    assert str(caught.value) == "halve(float32[2, 3] on cpu, 7): no backend takes this. cpu: too cold; ref: n is 7"
    only_ref = Op("only", ref=lambda x: Declined("no"))
    with pytest.raises(Unsupported, match="cpu: not implemented; ref: no"):
        only_ref(1)


def test_the_first_that_does_not_decline_runs():
    calls = []
    op = Op("pick", cpu=lambda n: Declined("odd") if n % 2 else calls.append("cpu"), ref=lambda n: calls.append("ref"))
    op(2)
    op(3)
    with dispatch.use("ref"):
        op(2)
    op(2)
    assert calls == ["cpu", "ref", "ref", "cpu"]


def test_a_forced_backend_is_not_replaced():
    with dispatch.use("cpu"), pytest.raises(Unsupported, match=r"float64\[1, 4\] on cpu.*cpu: x must be float32"):
        linear.linear(torch.zeros(1, 4, dtype=torch.float64), linear.pack(torch.zeros(3, 4)))
    with pytest.raises(Unsupported, match="choose auto, triton, cpu or ref"):
        dispatch.use("gpu")


def test_an_odd_head_goes_to_the_reference():
    tails = torch.zeros(1, 1, 2, 128 * 24)
    pages, table = torch.zeros(1, 128 * 24 * 8, dtype=torch.uint8), torch.zeros(0, dtype=torch.int32)
    items = torch.tensor([[0, 1, 0, 0, -1, 0]], dtype=torch.int32)
    attention.append(torch.ones(1, 1, 24), torch.ones(1, 1, 24), tails, items)
    assert torch.equal(
        attention.paged_attention(torch.ones(1, 2, 24), tails, pages, items, table, attention.RAW32, 1.0), torch.ones(1, 2, 24)
    )
    with dispatch.use("cpu"), pytest.raises(Unsupported, match="cpu: head_dim 24 is not a multiple of 16"):
        attention.paged_attention(torch.ones(1, 2, 24), tails, pages, items, table, attention.RAW32, 1.0)


WITHOUT_NATIVE = """
import sys
sys.modules["pitstop._native"] = None
import torch
from pitstop.errors import Unsupported
from pitstop.ops import dispatch, linear
assert dispatch.native_missing(), "no reason given"
assert dispatch.describe() == "ref (plain torch)"
y = linear.linear(torch.ones(2, 3), linear.pack(torch.ones(5, 3)))
assert torch.equal(y, torch.full((2, 5), 3.0))
dispatch.set_threads(1)
try:
    dispatch.use("cpu")
except Unsupported as error:
    print(error)
"""


def test_without_the_native_module_the_reference_runs_and_says_why():
    run = subprocess.run([sys.executable, "-c", WITHOUT_NATIVE], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("backend cpu: ")
    assert "install Pitstop" in run.stdout


def test_instruction_sets_can_be_forced():
    assert dispatch.native.isa() in dispatch.native.available_isas()
    with pytest.raises(ValueError, match="cannot run the instruction set mmx"):
        dispatch.native.set_isa("mmx")
    assert dispatch.describe().startswith(dispatch.native.isa())
