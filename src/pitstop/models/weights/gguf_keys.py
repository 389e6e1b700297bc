"""A GGUF file's keys, under Hugging Face's names, to a decoder's config."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pitstop.errors import WeightsError
from pitstop.models.config import ModelConfig
from pitstop.models.families import FAMILIES, by_gguf
from pitstop.models.keys import Keys
from pitstop.models.rope import Divided, yarn_attention

ROPE_DIVISORS = "rope_freqs.weight"

EXPERT = re.compile(r"(.*_exps)\.(\d+)(\.\w+)")
"""The name of one expert's matrix: in GGUF files those of a layer are one tensor, [experts, out, in], without the number."""

_NAMES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "rope.scaling.type": "rope_scaling.rope_type",
    "rope.scaling.factor": "rope_scaling.factor",
    "rope.scaling.original_context_length": "rope_scaling.original_max_position_embeddings",
    "rope.scaling.attn_factor": "rope_scaling.attention_factor",
    "rope.scaling.yarn_beta_fast": "rope_scaling.beta_fast",
    "rope.scaling.yarn_beta_slow": "rope_scaling.beta_slow",
}
_GGUF_NAMES = {ours: name for name, ours in _NAMES.items()}
_HARMLESS = {"rope.scaling.finetuned", "pooling_type"}  # how it embeds does not change how it generates
_NEUTRAL = {
    "num_experts": 0,
    "num_experts_per_tok": 0,
    "rope.scale_linear": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "attention.causal": True,
}
"""Keys that change nothing at this value, and that we do not honour at any other."""


def read_config(
    path: Path, stated: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], divisors: Callable[[], np.ndarray]
) -> ModelConfig:
    """The config from a file's keys and its tensors' row-major `shapes`; divisors: reads the tensor ROPE_DIVISORS.

    Raises WeightsError: unknown architecture, a missing or impossible key, a key or a tensor that we do not honour.
    """
    name = stated.get("general.architecture")
    family = by_gguf(name, bool(stated.get(f"{name}.expert_count")))
    if family is None:
        known = ", ".join(dict.fromkeys(family.gguf for family in FAMILIES if family.gguf))
        raise WeightsError(path, f"architecture {name!r} is unknown; we run: {known}")
    own = {key.removeprefix(f"{name}."): value for key, value in stated.items() if key.startswith(f"{name}.")}
    keys = Keys(path, {**family.gguf_keys, **_translated(own, shapes)}, lambda key: f"{name}.{_GGUF_NAMES.get(key, key)}")
    keys.integer("num_hidden_layers", most=len(shapes))
    config = replace(family.config(keys), rope_interleaved=family.gguf_interleaved)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, config.head_dim) != config.head_dim:
            raise keys.refuse(key, f"differs from the head size {config.head_dim}, which is not honoured yet")
    keys.refuse_unread(_HARMLESS, _NEUTRAL)
    known = {EXPERT.sub(r"\1\3", tensor) for tensor in config.tensors()}
    for tensor in shapes:
        if tensor not in known and tensor != ROPE_DIVISORS:
            raise WeightsError(path, f"no part of a {name} decoder of {config.layers} layers that we run", tensor)
    return _divided(path, config, shapes, divisors) if ROPE_DIVISORS in shapes else config


def _translated(own: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Under Hugging Face's names where there is one."""
    values: dict[str, Any] = {"tie_word_embeddings": "output.weight" not in shapes}
    scaling: dict[str, Any] = {}
    for key, value in own.items():
        ours = _NAMES.get(key, key)
        if ours.startswith("rope_scaling."):
            scaling[ours.removeprefix("rope_scaling.")] = value
        else:
            values[ours] = value
    if embedding := shapes.get("token_embd.weight"):
        values.setdefault("vocab_size", embedding[0])
    if isinstance(pattern := values.get("sliding_window_pattern"), list):
        values["layer_types"] = ["sliding_attention" if local else "full_attention" for local in pattern]
        del values["sliding_window_pattern"]
    return values | {"rope_scaling": _scaling(scaling)}


def _scaling(stated: dict[str, Any]) -> dict[str, Any] | None:
    """In Hugging Face's sense: a factor without a type is linear, and YaRN's attention factor is one on top of the usual one."""
    if not stated:
        return None
    kind = stated.get("rope_type", "linear" if stated.get("factor", 1.0) != 1 else "none")
    values = stated | {"rope_type": "default" if kind == "none" else kind}
    if kind == "yarn" and {"attention_factor", "factor"} <= stated.keys():
        values["attention_factor"] *= yarn_attention(stated["factor"])
    return values


def _divided(path: Path, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], divisors: Callable[[], np.ndarray]) -> ModelConfig:
    if shapes[ROPE_DIVISORS] != (config.head_dim // 2,):
        raise WeightsError(path, f"has shape {list(shapes[ROPE_DIVISORS])}, expected {[config.head_dim // 2]}", ROPE_DIVISORS)
    if config.rope.scaling is not None:
        raise WeightsError(path, "stands beside keys that scale RoPE; which one counts is not clear", ROPE_DIVISORS)
    values = divisors()
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise WeightsError(path, "holds divisors that are not positive", ROPE_DIVISORS)
    return replace(config, rope=replace(config.rope, scaling=Divided(tuple(values.tolist()))))
