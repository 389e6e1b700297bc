"""Qwen 3 (Yang et al. 2025): Llama with q and k normalised by head, and Qwen 2's windows."""

from __future__ import annotations

from pitstop.models.config import ModelConfig
from pitstop.models.families.family import Family, dense
from pitstop.models.families.qwen2 import upper_windows
from pitstop.models.keys import Keys


def read(keys: Keys) -> ModelConfig:
    biased = keys.flag("attention_bias")
    return dense(keys, head_dim=128, qk_norm=True, qkv_bias=biased, output_bias=biased, windows=upper_windows(keys))


FAMILY = Family("qwen3", read, gguf="qwen3")
