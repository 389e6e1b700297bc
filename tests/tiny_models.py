"""Tiny seeded models of every family as Hugging Face folders, sharded, with a byte-level tokenizer and a chat template.

`python tests/tiny_models.py FOLDER` writes them all under FOLDER; each can be served: `make serve MODEL=FOLDER/qwen3`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from toy_gguf import CHAT_TEMPLATE, CONTROL, byte_alphabet
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB_SIZE = 272
"""Three control tokens and the 256 bytes, padded to a multiple of 16 as many models are."""

_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW = 48
_MIXTURE = _COMMON | {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
FAMILIES: dict[str, dict] = {
    "llama": _COMMON | {"rms_norm_eps": 1e-5, "attention_bias": True},
    "mistral": _COMMON | {"sliding_window": WINDOW},
    "mixtral": _COMMON | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    "qwen2": _COMMON | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1, "tie_word_embeddings": True},
    "qwen3": _COMMON | {"head_dim": 32},
    "qwen2_moe": _MIXTURE
    | {"shared_expert_intermediate_size": 64, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    "qwen3_moe": _MIXTURE | {"head_dim": 32, "norm_topk_prob": True, "mlp_only_layers": [1]},
    "gemma2": _COMMON
    | {"sliding_window": WINDOW, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0},
    "gemma3_text": _COMMON | {"num_hidden_layers": 7, "sliding_window": WINDOW, "query_pre_attn_scalar": 24},
}
"""By Hugging Face's `model_type`, what differs from its defaults: small, and such that every part of the family shows in the logits."""


def write_tiny_model(folder: Path, family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: object) -> Path:
    """Write the model to `folder` and return it. `changes` are keys of its config."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(FAMILIES[family] | changes)))
    draw(model, seed)
    model.to(dtype).save_pretrained(folder, max_shard_size="60KB")
    write_tokenizer(folder)
    return folder


@torch.no_grad()
def draw(model: torch.nn.Module, seed: int) -> None:
    """Weights such that activations keep their size, norms and biases matter, and logits differ clearly."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator))
        if "norm" in name:
            weight.mul_(0.2).add_(0.0 if model.config.model_type.startswith("gemma") else 1.0)
        elif weight.dim() >= 2 and "embed" not in name:
            weight.mul_(weight.shape[-1] ** -0.5)
        elif weight.dim() == 1:
            weight.mul_(0.5)


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json and what belongs to it: token 3 + b stands for the byte b, after CONTROL."""
    words = {token: id for id, token in enumerate([*CONTROL, *byte_alphabet()])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": CONTROL[1], "eos_token": CONTROL[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


if __name__ == "__main__":
    for name in FAMILIES:
        print(write_tiny_model(Path(sys.argv[1]) / name, name))
