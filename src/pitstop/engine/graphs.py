"""Decode steps as graphs: one per number of rows and of spans, recorded on first use and checked against the eager run first.

Steps with guessed tokens have more rows than spans. There are many such shapes, and recording takes as long as some forty eager steps lose:
one is recorded when it has come OFTEN times.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import torch

from pitstop.errors import Unsupported
from pitstop.ops import dispatch
from pitstop.ops.graph import Arena, Graph

log = logging.getLogger(__name__)

OFTEN = 8


class DecodeGraphs:
    """Runs `forward` (rows [n, width] fp32 → logits [n, vocab] fp32), which may call ops only, by graphs.

    Where an op has no native kernel for the model's shapes, as it is; the reason is logged once.
    """

    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._forward = forward
        self._arena = Arena()
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._uses: Counter[tuple[int, int]] = Counter()  # of shapes with guesses that are not recorded yet
        self._declined = False

    @staticmethod
    def usable(device: str) -> bool:
        """Whether `device` is where this process runs the native kernels."""
        return device == "cpu" and dispatch.native_missing() is None and "cpu" in dispatch.active()

    def __len__(self) -> int:
        """How many have been recorded."""
        return len(self._graphs)

    def __call__(self, x: torch.Tensor, spans: int) -> torch.Tensor:
        """forward(x), in memory that the next call overwrites. spans: the step's, whose number its native calls have noted."""
        if self._declined:
            return self._forward(x)
        graph = self._graphs.get(shape := (len(x), spans))
        if graph is None:
            self._uses[shape] += 1
            if len(x) > spans and self._uses[shape] < OFTEN:
                return self._forward(x)
            try:
                graph = self._graphs[shape] = self._record(x)
            except Unsupported as error:
                log.warning("decode steps are not recorded: %s", error)
                self._declined = True
                return self._forward(x)
        graph.input.copy_(x)
        return graph.replay()

    def _record(self, x: torch.Tensor) -> Graph:
        """A graph that gives the eager run's bits on an input that it was not recorded on, from poisoned memory.

        The step's keys and values are written by each of these runs; the caller's replay on the true input writes them last.
        """
        graph = Graph(self._forward, x, self._arena)
        other = x * 1.25
        expected = self._forward(other)
        self._arena.poison()
        graph.input.copy_(other)
        if not torch.equal(graph.replay(), expected):
            raise RuntimeError("a recorded decode step differs from the eager one: its forward does something that is not an op")
        return graph
