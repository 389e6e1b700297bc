"""Llama (Touvron et al. 2023; Grattafiori et al. 2024): grouped-query attention, RMSNorm, SwiGLU, RoPE. SmolLM is one, too."""

from __future__ import annotations

from pitstop.models.config import ModelConfig
from pitstop.models.families.family import Family, dense
from pitstop.models.keys import Keys


def read(keys: Keys) -> ModelConfig:
    biased = keys.flag("attention_bias")
    return dense(keys, qkv_bias=biased, output_bias=biased)


FAMILY = Family("llama", read, gguf="llama", gguf_interleaved=True)
