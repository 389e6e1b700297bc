"""Questions of our own to a worker, beside the queue and outside every count of users' requests."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from pitstop.errors import PitstopError
from pitstop.types import Output, Request, SamplingParams

_PRIORITY = -(10**9)  # before every user's request
_numbers = itertools.count()


class Answer(NamedTuple):
    """tokens: of the answer. logits: [rows, vocab] fp32, little endian, of a question that scores. vector: [width], of one that embeds."""

    tokens: list[int]
    logits: bytes
    vector: bytes = b""


def probe_request(prompt: list[int], max_tokens: int, timeout: float) -> Request:
    """Greedy, and of exactly `max_tokens` tokens."""
    now = time.monotonic()
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    name = f"probe-{next(_numbers)}"
    return Request(id=name, prompt=prompt, params=params, priority=_PRIORITY, arrival=now, deadline=now + timeout, probe=True)


def score_request(prompt: list[int], start: int, timeout: float) -> Request:
    """The logits at the prompt's positions from `start` on."""
    return msgspec.structs.replace(probe_request(prompt, 0, timeout), score_from=start)


def embed_request(prompt: list[int], timeout: float) -> Request:
    """The mean of the prompt's hidden states: a question for an encoder."""
    return msgspec.structs.replace(probe_request(prompt, 0, timeout), embed="mean")


def replay_request(prompt: list[int], timeout: float, adapter: str = "") -> Request:
    """The prompt alone, after every user's request, so that the worker's prefix cache has it."""
    return msgspec.structs.replace(probe_request(prompt, 0, timeout), priority=-_PRIORITY, probe=False, adapter=adapter)


@dataclass(eq=False, slots=True)
class _Probe:
    answer: asyncio.Future[Answer]
    tokens: list[int] = field(default_factory=list)
    logits: bytes = b""
    vector: bytes = b""


class Probes:
    """Those that one member has in flight."""

    def __init__(self) -> None:
        self._open: dict[str, _Probe] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request: Request) -> asyncio.Future[Answer]:
        """The answer, when all of it has come; PitstopError when they will not."""
        probe = self._open[request.id] = _Probe(asyncio.get_running_loop().create_future())
        return probe.answer

    def close(self, request_id: str) -> bool:
        """Nobody waits any more. Returns whether the worker still computes it."""
        return self._open.pop(request_id, None) is not None

    def take(self, outputs: list[Output]) -> None:
        """A step's outputs, those of others among them."""
        if not self._open:
            return
        for output in outputs:
            if probe := self._open.get(output.id):
                probe.tokens += output.tokens
                probe.logits += output.logits
                probe.vector += output.vector
                if output.finish is not None:
                    self._end(output, probe)

    def fail(self, error: PitstopError) -> None:
        """The worker is gone."""
        for probe in self._open.values():
            if not probe.answer.done():
                probe.answer.set_exception(error)
        self._open.clear()

    def _end(self, output: Output, probe: _Probe) -> None:
        del self._open[output.id]
        if probe.answer.done():
            return
        if output.finish == "length" or probe.vector:
            probe.answer.set_result(Answer(probe.tokens, probe.logits, probe.vector))
        else:
            probe.answer.set_exception(PitstopError(output.message or f"the engine ended a probe: {output.finish}"))
