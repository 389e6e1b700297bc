"""What is measured, and the clock: one for every engine that steps in this process. Standard library only, so that peers can run it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Case:
    """So many streams at once, each a prompt of `prompt` tokens and an answer of `tokens`."""

    streams: int
    prompt: int
    tokens: int


CASES = {
    "decode_1": Case(1, 16, 128),
    "decode_1_7k": Case(1, 7000, 32),
    "decode_32": Case(32, 256, 64),
    "prefill_512": Case(1, 512, 1),
    "prefill_2048": Case(1, 2048, 1),
}

WARM_UP = 2048
"""Prompt tokens of a warm-up, all streams together: every kernel has run once, and a long prompt is computed once only."""


class Stepper(Protocol):
    """An engine with continuous batching, greedy, without a prefix cache and without an end token."""

    def submit(self, index: int, prompt: list[int], tokens: int) -> None:
        """Queue stream `index`."""
        ...

    def step(self) -> list[int]:
        """Compute one step: the stream of each token that came."""
        ...


def speed(engine: Stepper, case: Case, prompts: list[list[int]]) -> float:
    """Tokens a second, after a warm-up.

    For answers of one token, prompt tokens over the time to first token. Else the tokens that came while all streams were answering,
    from the last stream's first token to the first stream's last, over that time.
    """
    _run(engine, [prompt[: WARM_UP // case.streams] for prompt in prompts], min(case.tokens, 4))
    begin = time.perf_counter()
    times = _run(engine, prompts, case.tokens)
    if case.tokens == 1:
        return sum(map(len, prompts)) / (max(stream[-1] for stream in times) - begin)
    first, last = max(stream[0] for stream in times), min(stream[-1] for stream in times)
    if last <= first:
        raise RuntimeError("the first stream ended before the last one began: no time at which all were answering")
    return sum(first < moment <= last for stream in times for moment in stream) / (last - first)


def throughput(engine: Stepper, prompts: list[list[int]], tokens: int) -> float:
    """Answer tokens a second from the first submission to the last token, prompts included, after a warm-up of four tokens each."""
    _run(engine, prompts, 4)
    begin = time.perf_counter()
    times = _run(engine, prompts, tokens)
    return sum(map(len, times)) / (max(stream[-1] for stream in times) - begin)


def _run(engine: Stepper, prompts: list[list[int]], tokens: int) -> list[list[float]]:
    """The times at which each stream's tokens came."""
    times: list[list[float]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        engine.submit(index, prompt, tokens)
    while any(len(stream) < tokens for stream in times):
        came = engine.step()
        now = time.perf_counter()
        for index in came:
            times[index].append(now)
    return times
