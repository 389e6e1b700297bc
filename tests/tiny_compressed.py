"""Tiny seeded models with integer weights, written by the compressed-tensors library as public checkpoints are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization.utils import calculate_qparams
from tiny_models import write_tiny_model, write_tokenizer
from transformers import AutoModelForCausalLM

ROUNDED = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
"""Activations of W8A8."""


def write_compressed(
    folder: Path, weights: dict[str, Any], dtype: torch.dtype, activations: dict[str, Any] | None = None, **changes: Any
) -> Path:
    """Write the tiny Llama to `folder` and return it, every projection but the head stored as the scheme `weights` says."""
    plain = write_tiny_model(folder.with_name(f"{folder.name}-plain"), "llama", attention_bias=False, dtype=dtype, **changes)
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=dtype)
    group = {"targets": ["Linear"], "weights": {"type": "int"} | weights, "input_activations": activations}
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": group}, ignore=["lm_head"]))
    for module in model.modules():
        if scheme := getattr(module, "quantization_scheme", None):
            size = scheme.weights.group_size or module.weight.shape[1]
            values = module.weight.unflatten(1, (-1, size))
            scale, zero = calculate_qparams(values.amin(2), values.amax(2), scheme.weights)
            module.weight_scale.data.copy_(scale)
            if not scheme.weights.symmetric:
                module.weight_zero_point.data.copy_(zero)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    write_tokenizer(folder)
    return folder
