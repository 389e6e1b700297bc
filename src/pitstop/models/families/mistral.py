"""Mistral (Jiang et al. 2023): Llama, with a sliding window in every layer where the config has one."""

from __future__ import annotations

from pitstop.models.config import ModelConfig
from pitstop.models.families.family import Family, dense, windows
from pitstop.models.keys import Keys


def read(keys: Keys) -> ModelConfig:
    window = 0 if keys.optional("sliding_window", 4096) is None else keys.integer("sliding_window", 4096)
    return dense(keys, windows=windows(keys, window))


FAMILY = Family("mistral", read)  # GGUF files call it llama, and have no window
