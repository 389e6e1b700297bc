"""Tiny seeded Grok checkpoints in the published layouts: Grok-1's pickles and tokenizer.model, Grok-2's safetensors of several ranks.

`python tests/tiny_grok.py FOLDER` writes both under FOLDER; each can be served: `make serve MODEL=FOLDER/grok1`.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tiny_models import VOCAB_SIZE, write_tokenizer
from tokenizer_models import PIECES, tokenizer_model

_COMMON = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "attn_logit_softcapping": 3.0,
    "embedding_multiplier_scale": 8.0,
}
GROK1 = _COMMON | {
    "model_type": "grok1",
    "num_hidden_layers": 11,  # leaves are in the order of their names, as text
    "intermediate_size": 96,
    "rope_theta": 10000.0,
    "attn_output_multiplier": 0.3,
    "output_multiplier_scale": 0.5773502691896257,
}
GROK2 = _COMMON | {
    "architectures": ["Grok1ForCausalLM"],
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "moe_intermediate_size": 96,
    "residual_moe": True,
    "rope_theta": 208533496,
    "rope_type": "original",
    "original_max_position_embeddings": 64,
    "scaling_factor": 16.0,
    "router_logit_softcapping": 2.0,
    "final_logit_softcapping": 10.0,
    "output_multiplier_scale": 0.5,
    "attn_temperature_len": 16,
    "sliding_window_size": -1,
    "global_attn_every_n": 1,
    "torch_dtype": "bfloat16",
}
RANKS = 4
_PUBLISHED_SHARDS = 8


@dataclass
class QuantizedWeight8bit:
    weight: np.ndarray
    scales: np.ndarray


QuantizedWeight8bit.__module__ = "__main__"


def grok1_leaves(seed: int = 0) -> dict[str, dict[str, Any]]:
    """Modules, and their parameters: fp32, or 8-bit [.., in, out] with a scale for each output and each of 1 or 8 parts of the inputs."""
    random = np.random.default_rng(seed)
    c = GROK1
    width, ffn, dim, experts = c["hidden_size"], c["intermediate_size"], c["head_dim"], c["num_local_experts"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim

    def scale() -> dict[str, np.ndarray]:
        return {"scale": (1 + 0.2 * random.standard_normal(width)).astype(np.float32)}

    def linear(*shape: int, parts: int = 1) -> dict[str, QuantizedWeight8bit]:
        inputs, outputs = shape[-2:]
        scales = random.uniform(0.5, 1.5, (*shape[:-2], parts, outputs)) * inputs**-0.5 / 64
        return {"w": QuantizedWeight8bit(random.integers(-127, 128, shape, np.int8), scales.astype(np.float32))}

    tree = {
        "language_model/in_out_embed": {"embeddings": random.standard_normal((c["vocab_size"], width)).astype(np.float32)},
        "language_model/rms_norm": scale(),
    }
    for layer in range(c["num_hidden_layers"]):
        block = f"transformer/decoder_layer_{layer}/"
        tree |= {block + norm: scale() for norm in ("rms_norm", "rms_norm_1", "rms_norm_2", "rms_norm_3")}
        tree[block + "multi_head_attention/query"] = linear(width, q)
        tree[block + "multi_head_attention/key"] = linear(width, kv)
        tree[block + "multi_head_attention/value"] = linear(width, kv)
        tree[block + "multi_head_attention/linear"] = linear(q, width, parts=_PUBLISHED_SHARDS)
        tree[block + "moe/linear"] = linear(experts, width, ffn)
        tree[block + "moe/linear_v"] = linear(experts, width, ffn)
        tree[block + "moe/linear_1"] = linear(experts, ffn, width, parts=_PUBLISHED_SHARDS)
        tree[block + "router"] = {"w": (random.standard_normal((width, experts)) * width**-0.5 * 2).astype(np.float32)}
    return tree


def flattened(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves with their paths, by sorted keys, as JAX flattens nested dicts."""
    for key in sorted(tree):
        if isinstance(tree[key], dict):
            yield from flattened(tree[key], f"{path}{key}/")
        else:
            yield path + key, tree[key]


def published_pickle(leaf: Any) -> bytes:
    """As the release's: protocol 4, numpy under the name that it had then, the class of 8-bit weights in __main__."""
    main = sys.modules["__main__"]
    before = getattr(main, "QuantizedWeight8bit", None)
    main.QuantizedWeight8bit = QuantizedWeight8bit
    try:
        data = pickle.dumps(leaf, protocol=4)
    finally:
        if before is None:
            del main.QuantizedWeight8bit
    new, old = (b"\x8c" + bytes([len(name)]) + name for name in (b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert data.count(new) == 1
    frame = int.from_bytes(data[3:11], "little") - 1
    return data[:3] + frame.to_bytes(8, "little") + data[11:].replace(new, old)


def write_grok1(folder: Path, seed: int = 0, **changes: object) -> Path:
    """Write the checkpoint to `folder` and return it. `changes` are keys of its config."""
    (folder / "ckpt-0").mkdir(parents=True)
    for number, (_, leaf) in enumerate(flattened(grok1_leaves(seed))):
        (folder / "ckpt-0" / f"tensor{number:05d}_000").write_bytes(published_pickle(leaf))
    (folder / "config.json").write_text(json.dumps(GROK1 | changes))
    (folder / "tokenizer.model").write_bytes(tokenizer_model(PIECES))
    return folder


def grok1_values(seed: int = 0) -> dict[str, torch.Tensor]:
    """The leaves by path, 8-bit ones multiplied out, fp64."""

    def whole(leaf: Any) -> np.ndarray:
        if not isinstance(leaf, QuantizedWeight8bit):
            return leaf
        return leaf.weight.astype(np.float64) * np.repeat(leaf.scales, leaf.weight.shape[-2] // leaf.scales.shape[-2], axis=-2)

    return {path: torch.from_numpy(whole(leaf)).double() for path, leaf in flattened(grok1_leaves(seed))}


def grok2_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """By name, bf16, whole."""
    generator = torch.Generator().manual_seed(seed)
    c = GROK2
    width, ffn, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim

    def matrix(outputs: int, inputs: int, gain: float = 1.0) -> torch.Tensor:
        return (torch.randn(outputs, inputs, generator=generator) * gain * inputs**-0.5).bfloat16()

    def norm() -> torch.Tensor:
        return (1 + 0.2 * torch.randn(width, generator=generator)).bfloat16()

    tensors = {
        "model.embed_tokens.weight": matrix(c["vocab_size"], width, width**0.5),
        "lm_head.weight": matrix(c["vocab_size"], width, 8.0),
        "model.norm.weight": norm(),
    }
    for layer in range(c["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        tensors |= {f"{block}{name}.weight": norm() for name in ("pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm")}
        sizes = {"q_proj": (q, width, 2.0), "k_proj": (kv, width, 2.0), "v_proj": (kv, width), "o_proj": (width, q)}
        tensors |= {f"{block}self_attn.{name}.weight": matrix(*size) for name, size in sizes.items()}
        sizes = {"gate_proj": (ffn, width), "up_proj": (ffn, width), "down_proj": (width, ffn)}
        tensors |= {f"{block}mlp.{name}.weight": matrix(*size) for name, size in sizes.items()}
        tensors[f"{block}block_sparse_moe.gate.weight"] = matrix(c["num_local_experts"], width, 3.0)
        for expert in range(c["num_local_experts"]):
            inner = c["moe_intermediate_size"]
            sizes = {"w1": (inner, width), "w3": (inner, width), "w2": (width, inner)}
            tensors |= {f"{block}block_sparse_moe.experts.{expert}.{name}.weight": matrix(*size) for name, size in sizes.items()}
    return tensors


KINDS = ("embed_tokens", "lm_head", "model.norm", "gate_proj", "down_proj", "up_proj", "w1", "w2", "w3", "k_proj", "o_proj", "q_proj",
         "v_proj", "pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm", "block_sparse_moe.gate")  # fmt: skip
"""A file of the release for each, in this order, all layers together; w1, w2 and w3 in a file for each rank."""


def write_grok2(folder: Path, seed: int = 0, **changes: object) -> Path:
    """Write the checkpoint to `folder` and return it. `changes` are keys of its config."""
    folder.mkdir(parents=True)
    tensors = grok2_tensors(seed)
    for number, kind in enumerate(KINDS):
        held = {name: tensor for name, tensor in tensors.items() if f".{kind}.weight" in f".{name}"}
        if kind not in ("w1", "w2", "w3"):
            save_file(held, folder / f"pytorch_model-{number:05d}-TP-common.safetensors")
            continue
        for rank in range(RANKS):
            cut = {name: tensor.chunk(RANKS, dim=1 if kind == "w2" else 0)[rank].contiguous() for name, tensor in held.items()}
            save_file(cut, folder / f"pytorch_model-{number:05d}-TP-{rank:03d}.safetensors")
    (folder / "config.json").write_text(json.dumps(GROK2 | changes))
    write_tokenizer(folder)
    return folder


if __name__ == "__main__":
    print(write_grok1(Path(sys.argv[1]) / "grok1"))
    print(write_grok2(Path(sys.argv[1]) / "grok2"))
