"""Grok-1 (xAI 2024, Apache-2.0): eight experts, two for a token; soft caps on attention; norms before and after attention and experts.

Where public implementations disagree, a key of config.json decides, and the default is what the code that came with the weights does:
norm_topk_prob (false: it multiplies experts by their shares of the softmax over all of them), router_logit_softcapping (none),
hidden_act ("gelu_pytorch_tanh", what JAX calls gelu; "gelu" is by the error function).
"""

from __future__ import annotations

from typing import Any

from pitstop.models.config import ModelConfig, Moe
from pitstop.models.families.family import ACTIVATIONS, Family, count_experts, dense
from pitstop.models.families.gemma2 import cap
from pitstop.models.keys import Keys

PUBLISHED: dict[str, Any] = {
    "model_type": "grok1",
    "num_hidden_layers": 64,
    "hidden_size": 6144,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 32768,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 131072,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attn_logit_softcapping": 30.0,
    "attn_output_multiplier": 0.08838834764831845,
    "embedding_multiplier_scale": 78.38367176906169,
    "output_multiplier_scale": 0.5773502691896257,
    "tie_word_embeddings": True,
}
"""What config.json would state; the release has none."""


def grok(keys: Keys, *, router_cap: float) -> dict[str, Any]:
    """What Grok-1 and Grok-2 have in common, and state in the same way. router_cap: where the keys state none."""
    moe = Moe(
        experts=count_experts(keys, 8),
        top_k=keys.integer("num_experts_per_tok", 2),
        ffn=keys.integer("moe_intermediate_size", keys.integer("intermediate_size")),
        renormalise=keys.flag("norm_topk_prob"),
        router_softcap=cap(keys, "router_logit_softcapping", router_cap),
    )
    return {
        "moe": moe,
        "norms_around": True,
        "activation": keys.choice("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh"),
        "embedding_scale": keys.number("embedding_multiplier_scale"),
        "logit_scale": keys.number("output_multiplier_scale"),
        "attention_softcap": cap(keys, "attn_logit_softcapping", 30.0),
        "logit_softcap": cap(keys, "final_logit_softcapping", 0.0),
    }


def read(keys: Keys) -> ModelConfig:
    if not keys.flag("tie_word_embeddings", True):
        raise keys.refuse("tie_word_embeddings", "is not honoured: the published layout has no place for a head of its own")
    return dense(keys, **grok(keys, router_cap=0.0), attention_scale=keys.number("attn_output_multiplier"), tied_head=True)


FAMILY = Family("grok1", read)
