"""The Triton kernel of products in Triton's interpreter against the reference, and faults that must show."""

from __future__ import annotations

import pytest
import torch
from interpreter import interpret

from pitstop.errors import Unsupported
from pitstop.ops import dispatch
from pitstop.ops.linear import linear
from pitstop.ops.linear.packing import pack_lines

PROGRAM = "interpreted_linear.py"


def beyond(found: dict[str, float], bound: float) -> dict[str, float]:
    return {name: figure for name, figure in found.items() if not figure <= bound}


@pytest.fixture(scope="module")
def checks() -> dict[str, dict[str, float]]:
    """The answers that the quick tests look at, of one process."""
    return interpret(PROGRAM, "answers", "stacks", "bits")


def test_answers_are_the_reference_s(checks):
    assert {check: len(checks[check]) for check in ("answers", "stacks")} == {"answers": 12, "stacks": 1}
    assert beyond(checks["answers"], 1) == {}
    assert beyond(checks["stacks"], 0) == {}


@pytest.mark.slow
def test_answers_in_the_other_order_and_at_edges_are_the_reference_s():
    found = interpret(PROGRAM, "more_answers", "edges")
    assert {check: len(figures) for check, figures in found.items()} == {"more_answers": 12, "edges": 14}
    assert beyond(found["more_answers"] | found["edges"], 1) == {}


def bits_that_change(found: dict[str, float]) -> dict[str, float]:
    return {name: figure for name, figure in found.items() if not figure <= (1 if name.endswith("errors") else 0)}


def test_bits_do_not_depend_on_the_tile_on_sharing_or_on_company(checks):
    assert len(checks["bits"]) == 7
    assert bits_that_change(checks["bits"]) == {}


@pytest.mark.slow
def test_bits_of_other_kinds_do_not_either():
    found = interpret(PROGRAM, "more_bits")["more_bits"]
    assert len(found) == 3 + 3 * 8 + 8
    assert bits_that_change(found) == {}


FAULTS = {
    "one input too many": ("block * 128 + k < depth", "block * 128 + k <= depth", "edges"),
    "one input too few": ("block * 128 + k < depth", "block * 128 + k < depth - 1", "edges"),
    "the scale of the neighbouring inputs": ("(word // 16 * 4 + word % 4)", "(word // 16 * 4 + (word % 4 ^ 2))", "edges"),
    "the scale of the neighbouring output": ("(word // 16 * 4 + word % 4)", "((word // 16 ^ 1) * 4 + word % 4)", "edges"),
    "nibbles are exchanged": ("tl.join(words, words >> 4)", "tl.join(words >> 4, words)", "edges"),
    "bytes are exchanged": ("pairs = tl.join(words, words >> 8)", "pairs = tl.join(words >> 8, words)", "edges"),
    "parts are merged twice": ("total += tl.load(mine", "total += 2.0 * tl.load(mine", "bits"),
    "parts are merged before they are there": ("== tl.num_programs(2) - 1", "== tl.num_programs(2) - 2", "bits"),
    "a part goes on in the next": (
        "part_sum = tl.zeros([OUTS, COLUMNS], tl.float32)\n    if not",
        "part_sum = part_sum\n    if not",
        "bits",
    ),
    "the counter stays": ("tl.store(at, 0)", "tl.store(at, 1)", "bits"),
    "a row is another's": ("x_at + row.to(tl.int64) * x_stride", "x_at + (row ^ 1).to(tl.int64) * x_stride", "edges"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(fault):
    old, new, check = FAULTS[fault]
    found = interpret(PROGRAM, "--plant", old, new, check)[check]
    assert beyond(found, 1) != {}


def test_a_wrong_edge_shows():
    """A neighbour's input is no number here."""
    old, new, check = FAULTS["one input too many"]
    assert beyond(interpret(PROGRAM, "--plant", old, new, check)[check], 1) != {}


def test_where_there_is_no_gpu_it_declines():
    from test_lines import any_stored, normal

    packed = pack_lines([any_stored("Q4_0", normal(4, 64))], torch.device("cpu"), 2)
    with dispatch.use("triton"), pytest.raises(Unsupported, match="triton: x is not on a GPU"):
        linear(torch.ones(1, 64), packed)
