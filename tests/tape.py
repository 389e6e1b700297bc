"""What a CUDA graph does, without a GPU: a list of calls on fixed addresses, with the numbers that they had when they were recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pitstop.ops import dispatch, gpu


class TapeCapture:
    """A cuda_graphs.Capture. replays: how often what it recorded was run again, of each recording."""

    def __init__(self) -> None:
        self.replays: list[int] = []

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        calls = record(function)
        number = len(self.replays)
        self.replays.append(0)

        def replay() -> None:
            self.replays[number] += 1
            with torch.inference_mode():
                for call in calls:
                    call()

        return replay


def record(function: Callable[[], None]) -> list[Callable[[], None]]:
    """Run it: its calls of torch, of native kernels and of Triton's interpreter. Raises RuntimeError where it reads a number back."""
    calls: list[Callable[[], None]] = []
    native = dispatch.native
    dispatch.native = _Native(native, calls)
    try:
        with _interpreted(calls), _Torch(calls):
            function()
    finally:
        dispatch.native = native
    return calls


READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


class _Torch(TorchDispatchMode):
    def __init__(self, calls: list[Callable[[], None]]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator in READS:
            raise RuntimeError("a number is read back while a step is recorded")
        kwargs = kwargs or {}
        results = operator(*args, **kwargs)

        def again() -> None:
            for there, new in zip(_tensors(results), _tensors(operator(*args, **kwargs)), strict=True):
                if there.data_ptr() != new.data_ptr():  # else it is a view, or was changed in place
                    there.copy_(new)

        self._calls.append(again)
        return results


class _Native:
    """Stands in for the native module. The tensors that its calls' addresses belong to are kept by torch's calls."""

    def __init__(self, native: object, calls: list[Callable[[], None]]) -> None:
        self._native, self._calls = native, calls

    def __getattr__(self, name: str) -> Callable[..., object]:
        function = getattr(self._native, name)

        def noted(*arguments: object) -> object:
            self._calls.append(lambda: function(*arguments))
            return function(*arguments)

        return noted


def _interpreted(calls: list[Callable[[], None]]):
    """Notes what Triton's interpreter is given, where that is what runs."""
    if not gpu.INTERPRETED:
        return nullcontext()
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    def noted(self, *arguments: object, **constants: object) -> None:
        calls.append(lambda: run(self, *arguments, **constants))
        with _disable_current_modes():
            run(self, *arguments, **constants)

    return mock.patch.object(GridExecutor, "__call__", noted)


def _tensors(results: object) -> list[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        return [results]
    return [each for each in results if isinstance(each, torch.Tensor)] if isinstance(results, list | tuple) else []
