"""A decoder's config as config.json states it, for models that come from a GGUF file, and what it says of integer weights."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pitstop.errors import Unsupported
from pitstop.models.config import ModelConfig
from pitstop.models.families import by_model_type
from pitstop.models.families.family import ACTIVATIONS
from pitstop.models.keys import Keys
from pitstop.models.rope import Linear, Rope, Yarn
from pitstop.models.weights.compressed import KEY
from pitstop.precision.scheme import Scheme

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
"""What transformers calls the families that come in GGUF files."""
_GEMMA = ("gemma2", "gemma3_text")


def config_json(config: ModelConfig, path: Path) -> dict[str, Any]:
    """The keys from which a folder's reader makes this config again, q and k in Hugging Face's order.

    Raises Unsupported, naming the model's `path`, for a decoder that these keys cannot describe.
    """
    stated = _keys(config)
    family = by_model_type(config.architecture)
    if config.architecture not in _CLASSES or family.read(Keys(path, stated)) != replace(config, rope_interleaved=False):
        raise Unsupported(f"{path}: this {config.architecture} cannot be written as a folder; quantise the model's own folder instead")
    return {"architectures": [_CLASSES[config.architecture]], **stated}


def _keys(config: ModelConfig) -> dict[str, Any]:
    c = config
    activation = next(name for name, ours in ACTIVATIONS.items() if ours == c.activation)
    gemma = c.architecture in _GEMMA
    keys: dict[str, Any] = {
        "model_type": c.architecture,
        "hidden_size": c.width,
        "intermediate_size": c.ffn,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab_size,
        "rms_norm_eps": c.norm_eps,
        "tie_word_embeddings": c.tied_head,
        ("hidden_activation" if gemma else "hidden_act"): activation,
    } | _rope(c)
    if c.output_bias:
        keys["attention_bias"] = True
    if c.windows:
        types = ["full_attention" if window < 0 else "sliding_attention" for window in c.windows]
        keys |= {"sliding_window": max(c.windows), "layer_types": types}
        if c.architecture.startswith("qwen"):
            keys["use_sliding_window"] = True
    if gemma:
        keys |= {
            "query_pre_attn_scalar": round(c.attention_scale**-2, 6),
            "attn_logit_softcapping": c.attention_softcap or None,
            "final_logit_softcapping": c.logit_softcap or None,
        }
    return keys | (_experts(c) if c.moe else {})


def _rope(config: ModelConfig) -> dict[str, Any]:
    rope = config.rope
    keys: dict[str, Any] = {"rope_theta": rope.theta, "max_position_embeddings": config.context}
    if config.local_rope:
        keys["rope_local_base_freq"] = config.local_rope.theta
    match rope:
        case Rope(scaling=Linear(factor, stretches)):
            keys["rope_scaling"] = {"rope_type": "linear", "factor": factor}
            if stretches:
                keys["max_position_embeddings"] = round(config.context / factor)
        case Rope(scaling=Yarn() as yarn):
            keys["rope_scaling"] = {
                "rope_type": "yarn",
                "factor": yarn.factor,
                "original_max_position_embeddings": yarn.original,
                "attention_factor": yarn.attention,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
                "truncate": yarn.truncate,
            }
    return keys


def _experts(config: ModelConfig) -> dict[str, Any]:
    moe = config.moe
    if config.architecture == "mixtral":
        return {"num_local_experts": moe.experts, "num_experts_per_tok": moe.top_k}
    keys = {
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.ffn,
        "norm_topk_prob": moe.renormalise,
    }
    if moe.layers != tuple(range(config.layers)):
        keys["mlp_only_layers"] = [layer for layer in range(config.layers) if layer not in moe.layers]
    return keys | ({"shared_expert_intermediate_size": moe.shared_ffn} if moe.shared_ffn else {})


def quantization_config(config: ModelConfig, schemes: Mapping[str, Scheme], theirs: Callable[[str], str]) -> dict[str, Any]:
    """{KEY: …} as the compressed-tensors library states it. theirs: from our name of a tensor to the checkpoint's.

    Matrices of one scheme are a group, named by patterns where there are several schemes. Linear layers that stay whole are ignored.
    """
    targets: dict[Scheme, set[str]] = defaultdict(set)
    for name, scheme in schemes.items():
        targets[scheme].add("re:.*" + re.sub(r"\\?\.\d+(?=\\?\.|$)", r"\\.\\d+", re.escape(_module(theirs(name)))) + "$")
    alone = len(targets) == 1
    groups = {
        f"group_{number}": {"targets": ["Linear"] if alone else sorted(patterns), "weights": _weights(scheme)}
        for number, (scheme, patterns) in enumerate(sorted(targets.items(), key=repr))
    }
    whole = [name for name, shape in config.tensors().items() if len(shape) == 2 and name not in schemes and name.startswith("blk.")]
    return {
        KEY: {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": ["lm_head", *(_module(theirs(name)) for name in whole)],
        }
    }


def _module(tensor: str) -> str:
    return tensor.removesuffix(".weight")


def _weights(scheme: Scheme) -> dict[str, Any]:
    grouped = {"strategy": "group", "group_size": scheme.group} if scheme.group else {"strategy": "channel"}
    return {"num_bits": scheme.bits, "type": "int", "symmetric": scheme.symmetric, "dynamic": False, **grouped}
