"""Tiny seeded encoders as sentence-transformers folders, with tokenizers of their kind.

`python tests/tiny_encoders.py FOLDER` writes them all under FOLDER; each can be served: `make serve MODEL=FOLDER/bert`.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from sentence_folders import byte_level, unigram, wordpiece, write_modules
from tiny_models import draw
from transformers import AutoConfig, AutoModel

CONTEXT = 400
_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
}
ENCODERS: dict[str, dict] = {
    "bert": _COMMON | {"max_position_embeddings": CONTEXT, "layer_norm_eps": 1e-4},
    "roberta": _COMMON | {"max_position_embeddings": CONTEXT + 2, "type_vocab_size": 1, "pad_token_id": 1, "hidden_act": "gelu_new"},
    "xlm-roberta": _COMMON | {"max_position_embeddings": CONTEXT + 2, "type_vocab_size": 1, "pad_token_id": 1},
}
"""By Hugging Face's `model_type`, what differs from its defaults."""
POOLING = {"bert": "mean", "roberta": "cls", "xlm-roberta": "mean"}


def write_tiny_encoder(folder: Path, family: str, seed: int = 0, pooling: str = "", normalize: bool = True, **changes: object) -> Path:
    """Write the model to `folder` and return it. pooling: cls, mean or last. `changes` are keys of its config."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = {"bert": wordpiece, "roberta": byte_level, "xlm-roberta": unigram}[family]()
    size = tokenizer.get_vocab_size() + 3  # rows that only pad
    model = AutoModel.from_config(AutoConfig.for_model(family, **(ENCODERS[family] | {"vocab_size": size} | changes)))
    draw(model, seed)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_modules(folder, pooling or POOLING[family], normalize, changes.get("hidden_size", 64))
    return folder


def reference(folder: Path, tokens: list[int]) -> torch.Tensor:
    """The last hidden states, [tokens, width] fp32, by transformers."""
    with torch.inference_mode():
        return _reference_model(folder)(torch.tensor([tokens])).last_hidden_state[0]


@cache
def _reference_model(folder: Path) -> torch.nn.Module:
    return AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


def pooled(hidden: torch.Tensor, pooling: str, normalize: bool = True) -> torch.Tensor:
    """In fp64."""
    hidden = hidden.double()
    vector = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
    return vector / vector.norm() if normalize else vector


if __name__ == "__main__":
    for name in ENCODERS:
        print(write_tiny_encoder(Path(sys.argv[1]) / name, name))
