"""Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases on q, k and v, and a sliding window in the upper layers where it is switched on."""

from __future__ import annotations

from pitstop.models.config import ModelConfig
from pitstop.models.families.family import Family, dense, windows
from pitstop.models.keys import Keys


def window_size(keys: Keys) -> int:
    """0 where windows are switched off, whatever the keys state about them."""
    keys.get("sliding_window")
    return keys.integer("sliding_window", 4096) if keys.flag("use_sliding_window") else 0


def upper_windows(keys: Keys) -> tuple[int, ...]:
    """Of the layers from `max_window_layers` on."""
    first = keys.get("max_window_layers", 28)
    return windows(keys, window_size(keys), lambda layer: layer >= first)


def read(keys: Keys) -> ModelConfig:
    return dense(keys, qkv_bias=True, windows=upper_windows(keys))


FAMILY = Family("qwen2", read, gguf="qwen2")
