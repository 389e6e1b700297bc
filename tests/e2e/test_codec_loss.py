"""What each codec costs on the default model, where prose turns into code: KL divergence from the 16-bit cache, scored after the turn.

Among the quick tests the guard (test_guard.py) measures toys and the default model on less text.
"""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path

import numpy as np
import pytest
from logits import kept_logits

from pitstop import LLM, SamplingParams
from pitstop.stats import kl_divergence
from pitstop.types import Request

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROSE = (Path(__file__).parents[2] / "LICENSE").read_text()
CODE = inspect.getsource(argparse)
HALF = 512
"""Tokens of prose, then as many of code: four segments each."""


@pytest.fixture(scope="module")
def logits(model_path: Path):
    """Codec → logits after the turn, [tokens, vocab]."""
    done: dict[str, np.ndarray] = {}

    def after_the_turn(codec: str) -> np.ndarray:
        if codec not in done:
            llm = LLM(model_path, codec=codec, prefix_cache=False, max_running=1)
            encode = llm.tokenizer.encode
            done[codec] = scored(llm, encode(PROSE)[:HALF] + encode(CODE)[:HALF])[HALF:]
        return done[codec]

    return after_the_turn


def scored(llm: LLM, prompt: list[int]) -> np.ndarray:
    with kept_logits() as rows:
        llm.engine.submit(Request(id="score", prompt=prompt, params=SamplingParams(max_tokens=0, prompt_logprobs=0)))
        while llm.engine.busy:
            llm.engine.step()
    return np.concatenate(rows)


@pytest.fixture
def loss(logits):
    """Codec → mean KL divergence in nats."""
    return lambda codec: float(kl_divergence(logits("raw16"), logits(codec)).mean())


@pytest.mark.parametrize(("codec", "most"), [("int8", 1e-4), ("k8v4", 2e-3), ("k5v4", 2e-3), ("int4", 4e-3)])
def test_ours_lose_little(loss, codec, most):
    assert 0 < loss(codec) < most


def test_open_loop_differences_drift_and_closed_loop_ones_do_not(loss):
    """The account's older scheme, in the form in which its errors add up, is 50 times worse than in the form in which they do not."""
    opened, closed = loss("delta8-open"), loss("delta8")
    print(f"mean KL divergence: open loop {opened:.6f}, closed loop {closed:.6f}")
    assert opened > 0.005
    assert closed < 0.0005
    assert opened > 50 * closed


def test_one_range_a_segment_is_worse_than_a_range_a_channel(loss):
    assert loss("adaptive8") > 5 * loss("int8")
