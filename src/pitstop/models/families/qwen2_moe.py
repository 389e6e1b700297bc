"""Qwen 1.5 and 2 with experts (Yang et al. 2024): Qwen 2 with many small experts, and a gated one beside them that every token takes."""

from __future__ import annotations

from pitstop.models.config import ModelConfig, Moe
from pitstop.models.families.family import Family, count_experts, count_layers, dense, windows
from pitstop.models.families.qwen2 import window_size
from pitstop.models.keys import Keys


def sparse_layers(keys: Keys) -> tuple[int, ...]:
    """The layers with experts: every `decoder_sparse_step`th but those of `mlp_only_layers`.

    Raises WeightsError where there is none: such a model is another family's.
    """
    step, dense_layers = keys.integer("decoder_sparse_step", 1), keys.get("mlp_only_layers", [])
    if not isinstance(dense_layers, list) or not all(isinstance(layer, int) for layer in dense_layers):
        raise keys.refuse("mlp_only_layers", "is not a list of layers")
    layers = tuple(i for i in range(count_layers(keys)) if (i + 1) % step == 0 and i not in dense_layers)
    if not layers:
        raise keys.refuse("mlp_only_layers", f"with decoder_sparse_step = {step} leaves no layer with experts")
    return layers


def read(keys: Keys) -> ModelConfig:
    first, size = keys.get("max_window_layers", 28), window_size(keys)
    moe = Moe(
        experts=count_experts(keys, 60),
        top_k=keys.integer("num_experts_per_tok", 4),
        ffn=keys.integer("moe_intermediate_size", 1408),
        renormalise=keys.flag("norm_topk_prob"),
        layers=sparse_layers(keys),
        shared_ffn=keys.integer("shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    # Transformers' rule, which is not Qwen 2's: every other layer below max_window_layers.
    local = windows(keys, size, lambda layer: layer % 2 == 0 and layer < first)
    return dense(keys, moe=moe, qkv_bias=keys.flag("qkv_bias", True), windows=local)


FAMILY = Family("qwen2_moe", read, gguf="qwen2moe", gguf_experts=True)
