"""The one place that chooses which implementation of an op runs.

Backends, fastest first: "triton" (kernels for GPUs), "cpu" (native kernels) and "ref" (plain torch, on any device). Adding one adds its
name to ORDER and a function to the ops that have it; callers do not change.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch

from pitstop.errors import Unsupported, how_to_install

try:
    from pitstop import _native as native
except ImportError as error:
    native = None
    try:
        from pitstop._native_missing import REASON as _missing
    except ImportError:
        _missing = f"{error}; install Pitstop with pip, which builds it"
else:
    _missing = None

ORDER = ("triton", "cpu", "ref")

_active: tuple[str, ...] = ()

empty: Callable[..., torch.Tensor] = torch.empty
"""Where native kernels put their results: fp32 of the given shape. While a graph is captured, in the graph's memory (graph.py)."""


def recording() -> bool:
    """Whether the calls that are being made are noted in a graph (graph.py)."""
    return empty is not torch.empty


class Declined(NamedTuple):
    """What an implementation returns, before doing anything, for inputs that it does not take."""

    reason: str


class Op:
    """An op's implementations by backend. Calling it runs the first active one that does not decline."""

    __slots__ = ("_backends", "_name")

    def __init__(self, name: str, **backends: Callable) -> None:
        self._name = name
        self._backends = backends

    def __call__(self, *args: object) -> torch.Tensor | None:
        declined = []
        for backend in _active:
            if (function := self._backends.get(backend)) is not None:
                result = function(*args)
                if result.__class__ is not Declined:
                    return result
                declined.append(f"{backend}: {result.reason}")
            else:
                declined.append(f"{backend}: not implemented")
        raise Unsupported(f"{self._name}({', '.join(map(_describe, args))}): no backend takes this. {'; '.join(declined)}")


class _Restore:
    """Leaving it as a context puts the previous choice back."""

    def __init__(self, previous: tuple[str, ...]) -> None:
        self._previous = previous

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        global _active
        _active = self._previous


def use(backend: str) -> _Restore:
    """Choose for this process: "auto" (the fastest that takes each call), or one of ORDER and nothing else.

    Works at once; as a context (`with use("ref"):`) it is undone at the end. Raises Unsupported for one that is not here.
    """
    global _active
    previous = _active
    if backend == "auto":
        here = {"triton": torch.cuda.is_available(), "cpu": native is not None, "ref": True}
        _active = tuple(name for name in ORDER if here[name])
    elif backend not in ORDER:
        raise Unsupported(f"backend {backend}: choose auto, {', '.join(ORDER[:-1])} or {ORDER[-1]}")
    elif backend == "cpu" and _missing:
        raise Unsupported(f"backend cpu: {_missing}")
    elif backend == "triton" and importlib.util.find_spec("triton") is None:
        raise Unsupported("backend triton: Triton is not installed: " + how_to_install("gpu"))
    else:
        _active = (backend,)
    return _Restore(previous)


def active() -> tuple[str, ...]:
    """The backends in use, in order."""
    return _active


def native_missing() -> str | None:
    """Why the native kernels are not here, or None when they are."""
    return _missing


def describe() -> str:
    """What will run, in a few words for the operator: the native kernels' instruction set, or the reference."""
    if _active == ("triton",):
        return "triton"
    if "cpu" not in _active:
        return "ref (plain torch)"
    return native.isa() if native.has_fma() else f"{native.isa()} (no FMA instruction here: slow)"


def set_threads(threads: int) -> None:
    """Threads for native kernels and torch alike, the caller's included. Bits do not depend on it."""
    if native:
        native.set_threads(threads)
    torch.set_num_threads(threads)


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
    return str(value)


use("auto")
