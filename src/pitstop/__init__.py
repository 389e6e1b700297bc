"""Pitstop: an LLM serving engine. `from pitstop import LLM, SamplingParams` for the batch API; importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pitstop.types import SamplingParams

if TYPE_CHECKING:
    from pitstop.engine.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":  # lazy: it imports torch, which the HTTP front must never do
        from pitstop.engine.llm import LLM

        return LLM
    raise AttributeError(f"module 'pitstop' has no attribute {name!r}")
