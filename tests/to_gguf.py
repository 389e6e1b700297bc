"""A Hugging Face folder of tiny_models as a GGUF file, as the public converter lays it out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, TokenType
from toy_gguf import CHAT_TEMPLATE, add_tensor, finish

from pitstop.models.families import by_model_type
from pitstop.models.weights.gguf_keys import EXPERT
from pitstop.models.weights.source import ModelSource, open_model

KEYS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mixtral": {},
    "qwen2": {},
    "qwen2_moe": {"expert_feed_forward_length": 48, "expert_shared_feed_forward_length": 64},
    "qwen3": {},
    "qwen3_moe": {"expert_feed_forward_length": 48},
    "gemma2": {"attention.sliding_window": 48, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0},
    "gemma3_text": {"attention.sliding_window": 48},
}
"""By model_type, what is stated beside the sizes."""


def write_gguf(path: Path, folder: Path, store: Callable[[GGUFWriter, str, np.ndarray], None] | None = None) -> Path:
    """Write the folder's model to `path` and return it. store: adds one tensor's fp32 values to the file; None: as F32."""
    store = store or partial(add_tensor, kind="F32")
    source = open_model(folder)
    config, family = source.config, by_model_type(source.config.architecture)
    writer = GGUFWriter(path, family.gguf)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    if config.moe:
        writer.add_expert_count(config.moe.experts)
        writer.add_expert_used_count(config.moe.top_k)
    for key, value in KEYS[family.name].items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{family.gguf}.{key}", value)
    _add_tokenizer(writer, source)
    merged: dict[str, list[np.ndarray]] = {}
    for name, shape in config.tensors().items():
        values = source.tensor(name, shape).dequantize()
        if family.gguf_interleaved and name.split(".")[-2] in ("attn_q", "attn_k"):
            values = _pairs_side_by_side(values, config.head_dim)
        if part := EXPERT.fullmatch(name):
            merged.setdefault(part[1] + part[3], []).append(values)
        else:
            store(writer, name, np.ascontiguousarray(values.squeeze(0) if shape[:1] == (1,) else values))
    for name, experts in merged.items():
        store(writer, name, np.stack(experts))
    finish(writer)
    return path


def _pairs_side_by_side(values: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows (or elements of a bias) i and i + head_dim / 2 of each head next to each other."""
    heads = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return heads.swapaxes(1, 2).reshape(values.shape)


def _add_tokenizer(writer: GGUFWriter, source: ModelSource) -> None:
    vocabulary = source.vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token or f"[PAD{id}]" for id, token in enumerate(vocabulary.tokens)])
    writer.add_token_types([TokenType(kind) for kind in vocabulary.types])
    writer.add_token_merges([])
    writer.add_bos_token_id(vocabulary.bos)
    writer.add_eos_token_id(vocabulary.eos)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
