"""The Triton kernels of routing and grouped experts in Triton's interpreter against the reference, and faults that must show."""

from __future__ import annotations

import pytest
import torch
from interpreter import interpret

from pitstop.errors import Unsupported
from pitstop.ops import dispatch, moe
from pitstop.ops.moe.ref import TOLERANCE

PROGRAM = "interpreted_experts.py"


def wrong(found: dict[str, float]) -> dict[str, float]:
    return {name: figure for name, figure in found.items() if not figure <= (TOLERANCE if name.endswith(": weights") else 0)}


@pytest.fixture(scope="module")
def checks() -> dict[str, dict[str, float]]:
    """The answers that the quick tests look at, of one process."""
    return interpret(PROGRAM, "routes", "mixtures", "tiles")


def test_routes_are_the_reference_s(checks):
    assert len(checks["routes"]) == 18
    assert wrong(checks["routes"]) == {}


def test_mixtures_are_products_one_by_one_in_any_company(checks):
    assert len(checks["mixtures"]) == 5
    assert wrong(checks["mixtures"]) == {}
    assert checks["tiles"].pop("tiles") >= 8 + 2, "one of the eight experts has 40 rows, in tiles of 16"
    assert wrong(checks["tiles"]) == {}


@pytest.mark.slow
def test_mixtures_of_other_kinds_are_too():
    found = interpret(PROGRAM, "more_mixtures")["more_mixtures"]
    assert len(found) == 13
    assert wrong(found) == {}


FAULTS = {
    "an expert's row is a neighbour's": ("x_at + choice // per_row", "x_at + (choice ^ 1) // per_row", "mixtures"),
    "a choice is the next expert's": ("tl.store(at, tl.minimum(owner, EXPERTS - 1)", "tl.store(at, (owner + 1) % EXPERTS", "mixtures"),
    "the last tile has one choice too few": ("tl.minimum(left, COLUMNS), 0)", "tl.minimum(left, COLUMNS - 1), 0)", "tiles"),
    "terms are added in another order": ("range(1, TOP)", "range(TOP - 1, 0, -1)", "mixtures"),
    "of equals the higher": ("expert[None, :] < expert[:, None]", "expert[None, :] > expert[:, None]", "routes"),
    "NaN is small": ('float("inf"))\n    first', 'float("-inf"))\n    first', "routes"),
    "shares of all": ("chosen if RENORMALISE else there", "there", "routes"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(fault):
    old, new, check = FAULTS[fault]
    assert wrong({name: count for name, count in interpret(PROGRAM, "--plant", old, new, check)[check].items() if name != "tiles"}) != {}


def test_where_there_is_no_gpu_it_declines():
    with dispatch.use("triton"), pytest.raises(Unsupported, match="triton: logits is not on a GPU"):
        moe.route(torch.zeros(2, 8), 2, True)
