"""Logits of a prompt, from the engine that serves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np

from pitstop import LLM, SamplingParams
from pitstop.engine.runner import Runner
from pitstop.types import Logprob, Request, Sampled


def prompt_logits(llm: LLM, prompt: list[int]) -> np.ndarray:
    """Logits of every prompt position, [len(prompt), vocab], computed in chunks as the server does."""
    engine, rows = llm.engine, []
    engine.submit(Request(id="score", prompt=prompt, params=SamplingParams(max_tokens=0, prompt_logprobs=0)))
    while engine.busy:
        plan = engine.scheduler.plan()
        rows.append(engine._runner.logits(plan))
        span = plan.spans[0]
        scores = [Logprob(token, 0.0) for token in prompt[span.start + 1 : span.start + span.count + 1]]
        engine.scheduler.settle(plan, {"score": Sampled([], None, scores)})
    return np.concatenate(rows)


@contextmanager
def kept_logits() -> Iterator[list[np.ndarray]]:
    """The logits of every step that is run meanwhile."""
    rows, forward = [], Runner.forward

    def keeping(runner: Runner, plan):
        logits, states = forward(runner, plan)
        rows.append(logits.numpy().copy())
        return logits, states

    with mock.patch.object(Runner, "forward", keeping):
        yield rows
