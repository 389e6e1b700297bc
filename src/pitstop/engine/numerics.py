"""What an engine's bits depend on, as a line of text: equal lines, equal answers."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from pitstop import __version__
from pitstop.config import EngineConfig
from pitstop.models.config import ModelConfig
from pitstop.ops import dispatch
from pitstop.types import Codec


def numerics(config: EngineConfig, model: ModelConfig, codec: Codec, weights: str) -> str:
    """config: resolved. weights: the model's identity.

    Threads, chunks, batches and memory are not in it, as no bit depends on them; the context is, where the rotation does.
    """
    return "; ".join((*_common(config), repr(codec), model.rope.note(config.kv.context) or "rotation of any context", weights))


def encoder_numerics(config: EngineConfig, weights: str) -> str:
    """The same of an encoder, which has neither cache nor rotation."""
    return "; ".join((*_common(config), "encoder", weights))


def _common(config: EngineConfig) -> tuple[str, ...]:
    activations = "int16" if config.activations == "exact" else config.activations
    return __version__, torch.__version__, _native(), config.device, *dispatch.active(), activations


def _native() -> str:
    """The native kernels' build."""
    if dispatch.native is None:
        return "no native kernels"
    with Path(dispatch.native.__file__).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
