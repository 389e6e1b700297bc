"""Graphs of native calls: a forward recorded once and then run as one call, as CUDA graphs do on a GPU.

At one row the kernels of a decode step take as long as the Python between them. Recording notes every native call with its arguments;
replaying makes the same calls on the same addresses. What may change between replays is what lies at those addresses.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from math import prod

import numpy as np
import torch

from pitstop.ops import dispatch


class Arena:
    """Memory for the intermediate results of graphs that are never run at the same time, so that they can all share it.

    A result's memory is handed out again as soon as no tensor refers to it, as in the eager run that is recorded.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = defaultdict(list)  # by size class
        self._blocks: list[np.ndarray] = []

    def empty(self, *shape: int) -> torch.Tensor:
        """fp32 of `shape`, uninitialised."""
        count = prod(shape)
        size = 1 << max(count - 1, 0).bit_length()
        if not self._free[size]:
            self._blocks.append(np.empty(size, np.float32))
            self._free[size].append(self._blocks[-1])
        block = self._free[size].pop()
        lent = block[:count]  # torch's storage holds this object, whatever views are made of the tensor
        weakref.finalize(lent, self._free[size].append, block)
        return torch.from_numpy(lent).view(shape)

    def lasting(self, result: torch.Tensor) -> torch.Tensor:
        """The memory of `result` as a tensor that does not keep it from being lent again: valid until another graph runs.

        Raises RuntimeError for a tensor that is not of this arena.
        """
        block = next((block for block in self._blocks if block.ctypes.data == result.data_ptr()), None)
        if block is None:
            raise RuntimeError("a recorded function must end in an op, and call nothing else")
        return torch.from_numpy(block[: result.numel()]).view(result.shape)

    def poison(self) -> None:
        """Fill everything with NaN: what a replay does not write again will show."""
        for block in self._blocks:
            block.fill(np.nan)


class Graph:
    """One recorded function. `replay` runs it on what `input` holds and leaves the result in `output`."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor, arena: Arena) -> None:
        """Record function(example), which runs too. It may call ops only: anything else would be missing from the replay.

        A replay reads what lies where the example lay, which is kept as `input`. Raises Unsupported when an op has no native kernel for
        its inputs.
        """
        self.input = example
        self._arena = arena  # the recorded addresses lie in it
        self._calls = dispatch.native.Graph()
        recorder = _Recorder(self._calls)
        previous = dispatch.native, dispatch.empty
        with dispatch.use("cpu"):
            dispatch.native, dispatch.empty = recorder, arena.empty
            try:
                self.output = arena.lasting(function(self.input))
            finally:
                dispatch.native, dispatch.empty = previous

    def replay(self) -> torch.Tensor:
        self._calls.replay()
        return self.output


class _Recorder:
    """Stands in for the native module: notes each call in a graph, and makes it."""

    def __init__(self, calls: object) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Callable[..., None]:
        note, run = getattr(self._calls, name), getattr(_native, name)

        def both(*arguments: object) -> None:
            note(*arguments)
            run(*arguments)

        return both


_native = dispatch.native
