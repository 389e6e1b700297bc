"""Grok-2 (xAI 2025): Grok-1 with a dense network beside the experts, caps everywhere, and attention that sharpens with the position.

Where public implementations disagree, a key of config.json decides: norm_topk_prob and hidden_act as for Grok-1; router_logit_softcapping
(30, which the release states; some leave the cap out); attn_temperature_after_cap (true: the server that the release names multiplies
scores by log p / log attn_temperature_len after their cap in most of its kernels, and before it in others).
"""

from __future__ import annotations

from dataclasses import replace

from pitstop.models.config import ModelConfig
from pitstop.models.families.family import BLOCK, Family, dense
from pitstop.models.families.grok1 import grok
from pitstop.models.keys import Keys

BLOCK_NAMES = BLOCK | {
    "attn_norm": "pre_attn_norm",
    "post_attention_norm": "post_attn_norm",
    "ffn_norm": "pre_moe_norm",
    "post_ffw_norm": "post_moe_norm",
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    "ffn_gate_shexp": "mlp.gate_proj",
    "ffn_up_shexp": "mlp.up_proj",
    "ffn_down_shexp": "mlp.down_proj",
}

PUBLISHED = {
    "architectures": ["Grok1ForCausalLM"],
    "num_hidden_layers": 64,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 32768,
    "moe_intermediate_size": 16384,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "residual_moe": True,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 208533496,
    "rope_type": "original",
    "original_max_position_embeddings": 8192,
    "scaling_factor": 16.0,
    "extrapolation_factor": 1.0,
    "attn_factor": 1.0,
    "beta_fast": 8,
    "beta_slow": 1,
    "attn_logit_softcapping": 30.0,
    "router_logit_softcapping": 30.0,
    "final_logit_softcapping": 50,
    "attn_temperature_len": 1024,
    "embedding_multiplier_scale": 90.50966799187809,
    "output_multiplier_scale": 0.5,
    "sliding_window_size": -1,
    "global_attn_every_n": 1,
}
"""What the release's config.json states."""

_FIXED = {
    "sliding_window_size": -1,
    "global_attn_every_n": 1,
    "rope_rotate_half_dims": False,
    "attn_logit_softcapping_method": "tanh",
    "context_len": None,
}
_PLACING = ("load_presharded_attn", "load_presharded_embedding", "load_presharded_mlp", "load_presharded_moe", "merge_gate_up",
            "replicate_embedding", "replicate_lm_head")  # fmt: skip
"""How another server spreads the tensors over its devices."""


def read(keys: Keys) -> ModelConfig:
    for name, value in _FIXED.items():
        if keys.get(name, value) != value:
            raise keys.refuse(name, f"is not honoured yet; we have {value!r}")
    for name in _PLACING:
        keys.get(name)
    _read_rope_type(keys)
    common = grok(keys, router_cap=30.0)
    if keys.flag("residual_moe"):
        common["moe"] = replace(common["moe"], shared_ffn=keys.integer("intermediate_size"), scale=0.5**0.5)
    length = keys.get("attn_temperature_len", -1)
    return dense(
        keys,
        **common,
        temperature_length=0 if length == -1 else keys.integer("attn_temperature_len"),
        cap_first=keys.flag("attn_temperature_after_cap", True),
    )


def _read_rope_type(keys: Keys) -> None:
    """ "original" leaves the frequencies as they are, whatever the other keys of the scaling state."""
    kind = keys.get("rope_type")
    if kind not in (None, "original"):
        raise keys.refuse("rope_type", "is not honoured yet; we have original")
    if kind:
        for name in ("original_max_position_embeddings", "scaling_factor", "extrapolation_factor", "attn_factor", "beta_fast", "beta_slow"):
            keys.get(name)


FAMILY = Family("grok2", read, architectures=("Grok1ForCausalLM", "Grok1ModelForCausalLM"), block=BLOCK_NAMES)
