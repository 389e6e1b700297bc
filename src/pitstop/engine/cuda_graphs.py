"""Decode steps as CUDA graphs: padded to a few sizes, recorded on first use of each, checked against the eager run, and replayed.

A graph is a fixed list of kernels on fixed addresses. So all that changes from step to step lies in the view's buffers, and what the
launches' sizes depend on is rounded up: rows to BUCKETS, the attention's work to powers of two (kv.view.Room). Rows that are nobody's
fill what is left. A step of another kind (prefill, guesses, adapters) runs as it is.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from pitstop.engine.graphs import Runs
from pitstop.errors import Unsupported
from pitstop.kv.view import Room, StepView
from pitstop.models.decoder import Decoder
from pitstop.models.lora.weights import Lora
from pitstop.ops import dispatch
from pitstop.types import StepPlan

log = logging.getLogger(__name__)

BUCKETS = (1, 2, 4, 8)
"""Rows of a recorded step; above, multiples of the last."""

KEPT = 128
"""Graphs, those used last: each holds some thousand launches' arguments on the GPU."""


class Capture(Protocol):
    """Records what a function does to memory. What is returned does the same again, on the same addresses."""

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """Raises RuntimeError for a function that reads results back, or does anything else that cannot be recorded."""
        ...


class CudaCapture:
    """By torch.cuda.CUDAGraph. Graphs share the memory of what they compute in between: only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            function()
        return graph.replay


class CudaGraphs:
    """See graphs.DecodeSteps. most: streams of a step."""

    def __init__(self, model: Decoder, view: StepView, most: int, device: str, capture: Capture | None = None) -> None:
        self._model = model
        self._view = view
        self._most = most
        self._capture = capture or CudaCapture()
        self._logits = torch.empty(most, model.config.vocab_size, device=device)
        self._graphs: OrderedDict[Room, Callable[[], None]] = OrderedDict()  # oldest use first
        self._declined = False
        self.recorded = 0
        self.sizes = tuple(sorted({min(bucket(rows), most) for rows in range(1, most + 1)}))

    @staticmethod
    def usable(device: str) -> bool:
        """Whether `device` is where this process runs kernels that never ask the host."""
        return device == "cuda" and "triton" in dispatch.active()

    def takes(self, plan: StepPlan, runs: Runs) -> bool:
        return not self._declined and not runs and plan.decodes and plan.rows == len(plan.spans)

    def __call__(self, plan: StepPlan, runs: Runs = ()) -> torch.Tensor:
        room = self._view.room(plan, min(bucket(plan.rows), self._most))
        if room not in self._graphs:
            self._record(plan, room)
        self._view.load(plan, room)
        if self._declined:
            self._step(room.rows)
        else:
            self._graphs.move_to_end(room)
            self._graphs[room]()
        return self._logits[: plan.rows]

    def forget(self, lora: Lora) -> None:
        """No adapter is in a graph."""

    def _step(self, rows: int) -> None:
        """What is recorded: from the view's tokens to the logits."""
        self._logits[:rows].copy_(self._model.forward(self._model.embed(self._view.tokens), self._view))

    def _record(self, plan: StepPlan, room: Room) -> None:
        """Record the step on rows that are nobody's, and see that it gives the eager run's bits on the plan's.

        The eager run comes first, since it compiles the kernels. It writes the plan's keys and values, as the replays after it do again.
        """
        self.recorded += 1
        step = partial(self._step, room.rows)
        self._view.load(plan, room)
        step()
        expected = self._logits[: room.rows].clone()
        self._view.load(StepPlan(), room)
        try:
            replay = self._capture(step)
        except (RuntimeError, Unsupported) as error:
            self._decline(f"{error}")
            return
        self._view.load(plan, room)
        self._logits.fill_(torch.nan)
        replay()
        if torch.equal(self._logits[: room.rows], expected):
            self._graphs[room] = replay
            if len(self._graphs) > KEPT:
                self._graphs.popitem(last=False)
        else:
            self._decline("a replay differs from the eager run: the step does something that is not recorded")

    def _decline(self, reason: str) -> None:
        log.warning("decode steps are not recorded: %s", reason.strip().splitlines()[0])
        self._declined = True
        self._graphs.clear()


def bucket(rows: int) -> int:
    """The least size that holds so many rows."""
    return next((size for size in BUCKETS if size >= rows), -(-rows // BUCKETS[-1]) * BUCKETS[-1])
