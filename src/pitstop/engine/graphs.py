"""Decode steps as graphs: one per number of rows and of spans, recorded on first use and checked against the eager run first.

Steps with guessed tokens have more rows than spans. There are many such shapes, and recording takes as long as some forty eager steps lose:
one is recorded when it has come OFTEN times. Rows that adapters change are part of a shape, too. Those come and go: such a one is recorded
when it has come OFTEN times in a row, and the KEPT used last are kept.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from functools import partial
from typing import Protocol

import torch

from pitstop.errors import Unsupported
from pitstop.kv.view import StepView
from pitstop.models.decoder import Decoder
from pitstop.models.lora.weights import Lora, Run
from pitstop.ops import dispatch
from pitstop.ops.graph import Arena, Graph
from pitstop.types import StepPlan

log = logging.getLogger(__name__)

OFTEN = 8
KEPT = 32

Runs = tuple[Run, ...]
Shape = tuple[int, int, Runs]
"""Of a step: rows, spans, and the rows that adapters change."""


class DecodeSteps(Protocol):
    """Runs steps that decode from what was recorded of such ones, on the device that it is for."""

    recorded: int
    """How many have been recorded."""

    sizes: tuple[int, ...]
    """Streams of the steps that should be recorded before they are needed."""

    @staticmethod
    def usable(device: str) -> bool:
        """Whether `device` is where this process can do so."""
        ...

    def takes(self, plan: StepPlan, runs: Runs) -> bool:
        """Whether it runs this plan. runs: the rows that adapters change."""
        ...

    def __call__(self, plan: StepPlan, runs: Runs = ()) -> torch.Tensor:
        """The logits of a plan that it takes, [rows, vocab] fp32, in memory that the next call overwrites."""
        ...

    def forget(self, lora: Lora) -> None:
        """An adapter is gone, and its weights with it."""
        ...


class DecodeGraphs:
    """See DecodeSteps: on the CPU, where the model's forward calls ops only.

    Where an op has no native kernel for the model's shapes, it runs as it is; the reason is logged once.
    """

    def __init__(self, model: Decoder, view: StepView) -> None:
        self._model = model
        self._view = view
        self._arena = Arena()
        self._graphs: dict[Shape, Graph] = {}  # of steps without adapters
        self._uses: Counter[Shape] = Counter()  # of shapes with guesses that are not recorded yet
        self._adapted: OrderedDict[Shape, Graph] = OrderedDict()  # oldest use first
        self._latest: tuple[Shape | None, int] = None, 0  # the last step with adapters, and how often in a row it came
        self._declined = False
        self.recorded = 0
        self.sizes = ()

    @staticmethod
    def usable(device: str) -> bool:
        return device == "cpu" and dispatch.native_missing() is None and "cpu" in dispatch.active()

    def takes(self, plan: StepPlan, runs: Runs) -> bool:
        return plan.decodes

    def __call__(self, plan: StepPlan, runs: Runs = ()) -> torch.Tensor:
        self._view.load(plan)
        return self.step(len(plan.spans), runs)

    def step(self, spans: int, runs: Runs = ()) -> torch.Tensor:
        """The logits of what the view has loaded. spans: how many, which its native calls have noted."""
        graph = None if self._declined else self._graph((len(self._view.tokens), spans, runs))
        return self._forward(self._view.tokens, runs) if graph is None else graph.replay()

    def forget(self, lora: Lora) -> None:
        self._latest = None, 0
        for shape in [shape for shape in self._adapted if any(run.lora is lora for run in shape[2])]:
            del self._adapted[shape]

    def _forward(self, tokens: torch.Tensor, runs: Runs) -> torch.Tensor:
        return self._model.forward(self._model.embed(tokens), self._view, runs=runs)

    def _graph(self, shape: Shape) -> Graph | None:
        """None: this step is not worth recording, or cannot be."""
        runs = shape[2]
        graphs = self._adapted if runs else self._graphs
        if (graph := graphs.get(shape)) is None:
            if not self._worth(shape):
                return None
            try:
                graph = graphs[shape] = self._record(runs)
            except Unsupported as error:
                log.warning("decode steps are not recorded: %s", error)
                self._declined = True
                return None
        if runs:
            self._adapted.move_to_end(shape)
            if len(self._adapted) > KEPT:
                self._adapted.popitem(last=False)
        return graph

    def _worth(self, shape: Shape) -> bool:
        rows, spans, runs = shape
        if runs:
            latest, times = self._latest
            self._latest = shape, times + 1 if shape == latest else 1
            return self._latest[1] >= OFTEN
        self._uses[shape] += rows > spans
        return rows == spans or self._uses[shape] >= OFTEN

    def _record(self, runs: Runs) -> Graph:
        """A graph that gives the eager run's bits on tokens that it was not recorded on, from poisoned memory.

        The step's keys and values are written by each of these runs; the caller's replay on the true tokens writes them last.
        """
        self.recorded += 1
        tokens = self._view.tokens  # where the view keeps those of every step
        graph = Graph(partial(self._forward, runs=runs), tokens, self._arena)
        true, other = tokens.clone(), (tokens + 1) % self._model.config.vocab_size
        expected = self._forward(other, runs)
        self._arena.poison()
        tokens.copy_(other)
        same = torch.equal(graph.replay(), expected)
        tokens.copy_(true)
        if not same:
            raise RuntimeError("a recorded decode step differs from the eager one: its forward does something that is not an op")
        return graph
