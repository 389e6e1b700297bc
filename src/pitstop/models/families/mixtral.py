"""Mixtral (Jiang et al. 2024): Mistral with eight experts in the place of each feed-forward network, two for a token."""

from __future__ import annotations

from pitstop.models.config import ModelConfig, Moe
from pitstop.models.families.family import BLOCK, Family, count_experts, dense, windows
from pitstop.models.keys import Keys

MIXTRAL_BLOCK = BLOCK | {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}


def read(keys: Keys) -> ModelConfig:
    size = 0 if keys.get("sliding_window") is None else keys.integer("sliding_window")
    moe = Moe(
        experts=count_experts(keys, 8),
        top_k=keys.integer("num_experts_per_tok", 2),
        ffn=keys.integer("intermediate_size"),
    )
    return dense(keys, moe=moe, windows=windows(keys, size))


FAMILY = Family("mixtral", read, gguf="llama", gguf_interleaved=True, gguf_experts=True, block=MIXTRAL_BLOCK)
