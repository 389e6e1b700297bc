"""The toy model of toy_gguf as a Hugging Face folder, for tests that need no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import toy_gguf
from safetensors.numpy import save_file

from pitstop.models.families.llama import FAMILY

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": toy_gguf.LAYERS,
    "hidden_size": toy_gguf.WIDTH,
    "num_attention_heads": toy_gguf.HEADS,
    "num_key_value_heads": toy_gguf.KV_HEADS,
    "intermediate_size": toy_gguf.FFN,
    "vocab_size": toy_gguf.VOCAB_SIZE,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def write_toy_folder(folder: Path, shards: int = 1, **changes: Any) -> Path:
    """Write the model to `folder` and return it. `changes` are keys of config.json; `shards` files hold the weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    write_tensors(folder, {FAMILY.hugging_face(name): values for name, values in toy_gguf.tensors()}, shards)
    return folder


def write_tensors(folder: Path, tensors: dict[str, np.ndarray], shards: int = 1) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names, placed = list(tensors), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, folder / file)
        placed |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def tokenizer() -> dict[str, Any]:
    """What the tokenizers library writes for the toy vocabulary: byte-level BPE without merges, control tokens added."""
    words = {token: id for id, token in enumerate([*toy_gguf.CONTROL, *toy_gguf.byte_alphabet()])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": token} | flags for id, token in enumerate(toy_gguf.CONTROL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": words,
            "merges": [],
        },
    }
