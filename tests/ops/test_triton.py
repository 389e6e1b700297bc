"""The Triton kernels in Triton's interpreter against the reference, and faults that must show."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from interpreter import interpret

from pitstop.errors import Unsupported
from pitstop.ops import attention, dispatch
from pitstop.ops.attention import triton

PROGRAM = "interpreted_attention.py"


def wrong(errors: dict[str, float]) -> tuple[dict[str, float], int]:
    """The errors that are too large, and how many there are in all."""
    return {name: error for name, error in errors.items() if not error <= triton.TOLERANCE}, len(errors)


@pytest.fixture(scope="module")
def checks() -> dict[str, dict[str, float]]:
    """The answers that several tests look at, of one process."""
    return interpret(PROGRAM, "layouts", "splits", "edge")


def test_answers_are_the_reference_s(checks):
    assert wrong(checks["layouts"]) == ({}, 5)


@pytest.mark.slow
def test_answers_with_windows_and_caps_are_the_reference_s():
    assert wrong(interpret(PROGRAM, "scores")["scores"]) == ({}, 7)


@pytest.mark.slow
def test_answers_of_other_head_dims_are_the_reference_s():
    found = interpret(PROGRAM, "dims")["dims"]
    assert len(found) == 6
    assert {name: error for name, error in found.items() if not error <= triton.TOLERANCE} == {}


@pytest.mark.slow
def test_what_no_row_sees_changes_no_bit():
    found = interpret(PROGRAM, "unseen")["unseen"]
    assert len(found) == 8
    assert {name: count for name, count in found.items() if count} == {}


def test_bits_do_not_depend_on_how_blocks_share_rows(checks):
    found = checks["splits"]
    whole = {name: error for name, error in found.items() if name.endswith("whole")}
    assert len(whole) == 2
    assert max(whole.values()) <= 0.01
    assert {name: count for name, count in found.items() if name not in whole and count} == {}
    assert len(found) == 8


FAULTS = {
    "a row does not see itself": ("tokens[:, None] <= positions[None, :]", "tokens[:, None] < positions[None, :]", "layouts"),
    "a row sees the next token": ("tokens[:, None] <= positions[None, :]", "tokens[:, None] <= positions[None, :] + 1", "layouts"),
    "a window that is one too wide": ("> positions[None, :] - window", ">= positions[None, :] - window", "scores"),
    "unwritten values are read": ("16, 2, False, True, low, last)", "16, 2, False, False, low, last)", "layouts"),
    "halves of bytes are exchanged": ("tl.join(both & 15, both >> 4)", "tl.join(both >> 4, both & 15)", "layouts"),
    "the first segment is like the others": ("(first == 0) & (own > 0)", "(first == 0) & (own < 0)", "layouts"),
    "a group is merged twice": ("o1 * new[None, :])", "o1 * (new * 2)[None, :])", "splits"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(fault):
    old, new, check = FAULTS[fault]
    found = interpret(PROGRAM, "--plant", old, new, check)[check]
    assert any(not error <= triton.TOLERANCE * 2 for error in found.values()), found


def test_a_wrong_mask_edge_shows(checks):
    old, new, _ = FAULTS["a window that is one too wide"]
    assert checks["edge"]["window of one"] <= triton.TOLERANCE
    assert interpret(PROGRAM, "--plant", old, new, "edge")["edge"]["window of one"] > 10 * triton.TOLERANCE


def test_where_there_is_no_gpu_it_declines():
    tails, pages = torch.zeros(1, 1, 2, 128 * 64, dtype=torch.float16), torch.zeros(1, 128 * 64 * 4, dtype=torch.uint8)
    arguments = (torch.ones(1, 1, 64), tails, pages, torch.zeros(1, 6, dtype=torch.int32), torch.zeros(0, dtype=torch.int32))
    with dispatch.use("triton"), pytest.raises(Unsupported, match="triton: q is not on a GPU"):
        attention.paged_attention(*arguments, attention.RAW16, 1.0)


def test_without_triton_it_says_what_to_install():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from pitstop.ops import gpu\n"
        "print(gpu.missing())\n"
        "import importlib.util; importlib.util.find_spec = lambda name: None\n"
        "from pitstop.ops import dispatch\n"
        "try: dispatch.use('triton')\n"
        "except Exception as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.count("pip install -e '.[gpu]'") == 2
