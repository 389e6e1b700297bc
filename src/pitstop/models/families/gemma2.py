"""Gemma 2 (Gemma Team 2024): norms around attention and feed-forward, GeGLU, soft caps, a window in every other layer, scaled embedding."""

from __future__ import annotations

from typing import Any

from pitstop.models.config import ModelConfig
from pitstop.models.families.family import ACTIVATIONS, BLOCK, Family, count_layers, dense, windows
from pitstop.models.keys import Keys

GEMMA_BLOCK = BLOCK | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
NORM_OFFSET = 1.0
"""Hugging Face's checkpoints hold the norms' weights less one."""

HEAD_DIM = 256
"""Where the keys do not say."""

_LARGEST = 46
"""Layers of the 27B model, whose attention is scaled by width / heads: GGUF files do not state it."""


def gemma(keys: Keys, largest: int) -> dict[str, Any]:
    """What Gemma 2 and 3 have in common. largest: layers of the model whose attention is scaled by its width where the keys do not say."""
    width, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    by_width = count_layers(keys) == largest
    scalar = keys.number("query_pre_attn_scalar", width / heads if by_width else keys.integer("head_dim", HEAD_DIM))
    biased = keys.flag("attention_bias")
    keys.get("hidden_act")  # some configs state an older name beside the one that counts
    return {
        "norms_around": True,
        "activation": keys.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"),
        "embedding_scale": width**0.5,
        "attention_scale": scalar**-0.5,
        "tied_head": keys.flag("tie_word_embeddings", True),
        "head_dim": HEAD_DIM,
        "qkv_bias": biased,
        "output_bias": biased,
    }


def cap(keys: Keys, name: str, default: float) -> float:
    """A soft cap; null states that there is none."""
    return 0.0 if keys.optional(name, default) is None else keys.number(name, default)


def read(keys: Keys) -> ModelConfig:
    return dense(
        keys,
        **gemma(keys, _LARGEST),
        windows=windows(keys, keys.integer("sliding_window", 4096), lambda layer: layer % 2 == 0),
        attention_softcap=cap(keys, "attn_logit_softcapping", 50.0),
        logit_softcap=cap(keys, "final_logit_softcapping", 30.0),
    )


FAMILY = Family("gemma2", read, gguf="gemma2", norm_offset=NORM_OFFSET, block=GEMMA_BLOCK)
