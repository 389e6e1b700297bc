"""Qwen 3 with experts (Yang et al. 2025): Qwen 3 with many small experts, none beside them."""

from __future__ import annotations

from pitstop.models.config import ModelConfig, Moe
from pitstop.models.families.family import Family, count_experts, dense, windows
from pitstop.models.families.qwen2 import window_size
from pitstop.models.families.qwen2_moe import sparse_layers
from pitstop.models.keys import Keys


def read(keys: Keys) -> ModelConfig:
    biased, size = keys.flag("attention_bias"), window_size(keys)
    keys.get("max_window_layers")  # stated by released models; where windows are used at all, every layer has one
    moe = Moe(
        experts=count_experts(keys, 128),
        top_k=keys.integer("num_experts_per_tok", 8),
        ffn=keys.integer("moe_intermediate_size", 768),
        renormalise=keys.flag("norm_topk_prob"),
        layers=sparse_layers(keys),
    )
    return dense(keys, moe=moe, qk_norm=True, qkv_bias=biased, output_bias=biased, windows=windows(keys, size))


# GGUF files do not state norm_topk_prob; all released models renormalise.
FAMILY = Family("qwen3_moe", read, gguf="qwen3moe", gguf_experts=True, gguf_keys={"norm_topk_prob": True})
