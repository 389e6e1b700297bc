"""Model folders as Hugging Face's libraries write them: config.json, safetensors, tokenizer.json. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pitstop.errors import WeightsError
from pitstop.models.config import ModelConfig
from pitstop.models.embedding import Embedding
from pitstop.models.encoder_config import EncoderConfig
from pitstop.models.families import FAMILIES, by_model_type
from pitstop.models.families.family import Family
from pitstop.models.keys import Keys
from pitstop.models.weights.compressed import IntegerEntry, Quantisation, join, read_quantisation
from pitstop.models.weights.files import read_json, reading
from pitstop.models.weights.sentence import MODULES, longest_text, read_embedding
from pitstop.models.weights.shards import Entry, read_entries
from pitstop.models.weights.tensor import RawTensor, stored_note
from pitstop.models.weights.tensor_parallel import Joined, read_joined, tensor_parallel_files
from pitstop.models.weights.tokenizer_json import read_vocabulary
from pitstop.text.vocabulary import Vocabulary

HARMLESS = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "bos_token_id",
        "cache_implementation",
        "decoder_start_token_id",
        "do_sample",
        "dtype",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "id2label",
        "initializer_range",
        "is_llama_config",
        "is_matryoshka",
        "label2id",
        "matryoshka_dimensions",
        "max_length",
        "min_length",
        "num_beams",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "sep_token_id",
        "sliding_window_size",
        "temperature",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)
"""Keys of config.json that matter to training, to sampling, to other libraries, or to how the same is computed."""
NEUTRAL: dict[str, Any] = {
    "add_cross_attention": False,
    "attention_bias": False,
    "chunk_size_feed_forward": 0,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "pruned_heads": {},
    "rope_interleaved": False,
    "tie_encoder_decoder": False,
    "use_bidirectional_attention": False,
    "use_mrope": False,
    "use_sliding_window": False,
}
"""Keys that change nothing at this value, and that we do not honour at any other."""

_BUFFER = ".rotary_emb.inv_freq"
"""The end of the names of buffers in old checkpoints, which follow from the config."""


class ModelFolder:
    """An opened folder (source.ModelSource). Use `open_folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stated, self._family, self.config, self._quantisation = read_config(path)
        self._entries: dict[str, Entry | IntegerEntry | Joined] = self._read_entries()
        self._refuse_unknown()

    def tensor(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        """The tensor that GGUF calls `name`, which must have row-major `shape`.

        Raises WeightsError, with the folder's own name of it, when it is missing, has another shape, or is of a kind that we do not read.
        """
        theirs = self._family.hugging_face(name)
        entry = self._entries.get(theirs)
        if entry is None:
            raise WeightsError(self.path, "is missing; the folder is incomplete, fetch it again", theirs)
        if entry.shape != shape:
            raise WeightsError(entry.file, f"has shape {list(entry.shape)}, expected {list(shape)}", theirs)
        stored = entry.map(theirs)
        offset = self._family.norm_offset
        if offset and "norm." in name:
            return RawTensor(theirs, "F32", shape, stored.dequantize() + np.float32(offset))
        return stored

    def vocabulary(self) -> Vocabulary:
        """The tokenizer's data. Raises WeightsError when a part is missing or inconsistent."""
        embeds = isinstance(self.config, EncoderConfig) or (self.path / MODULES).is_file()
        with reading(self.path, "does not hold a sound tokenizer"):
            return read_vocabulary(self.path, self._stated, self.config.vocab_size, embeds)

    def embedding(self) -> Embedding | None:
        """How the model embeds, where the folder says so. Raises WeightsError for what we do not honour."""
        with reading(self.path, "does not say soundly how the model embeds"):
            return read_embedding(self.path, self._stated)

    def notes(self) -> list[str]:
        """How the matrices are stored, and what the checkpoint asks for that is done otherwise."""
        matrices = {name: shape for name, shape in self.config.tensors().items() if len(shape) > 1}
        lines = [stored_note((self._entries[self._family.hugging_face(name)].stored, shape) for name, shape in matrices.items())]
        if self._quantisation and self._quantisation.rounds_activations:
            lines.append("config.json asks for activations rounded to 8 bits; they stay exact here unless --activations says otherwise")
        return lines

    def _read_entries(self) -> dict[str, Entry | IntegerEntry | Joined]:
        if not tensor_parallel_files(self.path):
            entries = self._named(read_entries(self.path))
            return join(entries, self._quantisation) if self._quantisation else entries
        if self._quantisation:
            raise WeightsError(self.path / "config.json", "quantization_config is not honoured for files cut for tensor parallelism")
        return read_joined(self.path, {self._family.hugging_face(name): shape for name, shape in self.config.tensors().items()})

    def _named(self, entries: dict[str, Entry]) -> dict[str, Entry]:
        """Under the names of the model itself, without what stands beside it."""
        prefix, unused = self._family.prefix, self._family.unused
        if not unused:
            return entries
        old = {"gamma": "weight", "beta": "bias"}  # of norms, in checkpoints of the first years
        split = ((name.removeprefix(prefix).rpartition("."), entry) for name, entry in entries.items())
        named = {f"{stem}.{old.get(ending, ending)}": entry for (stem, _, ending), entry in split}
        return {name: entry for name, entry in named.items() if not name.startswith(unused)}

    def _refuse_unknown(self) -> None:
        known = {self._family.hugging_face(name) for name in self.config.tensors()}
        head = not isinstance(self.config, EncoderConfig) and self.config.tied_head
        tied = {self._family.hugging_face("output.weight")} if head else set()  # some store the shared matrix twice
        unknown: dict[str, Entry | IntegerEntry | Joined] = {
            name: entry for name, entry in self._entries.items() if name not in known | tied and not name.endswith(_BUFFER)
        }
        for name, entry in unknown.items():
            kind = "encoder" if isinstance(self.config, EncoderConfig) else "decoder"
            raise WeightsError(entry.file, f"no part of a {self.config.architecture} {kind} as config.json describes it", name)


def open_folder(path: str | os.PathLike[str]) -> ModelFolder:
    """Open the folder and check its structure: every key is honoured, every tensor lies within its file and has a place in the decoder.

    Raises WeightsError, one line naming the file and, where there is one, the tensor.
    """
    with reading(Path(path), "is no sound model folder"):
        return ModelFolder(Path(path))


def read_config(path: Path) -> tuple[dict[str, Any], Family, ModelConfig | EncoderConfig, Quantisation | None]:
    """What the folder's config.json states, and what that means. Raises WeightsError for a key that nobody honours."""
    file = path / "config.json"
    stated = read_json(file)
    with reading(file, "does not describe a model soundly"):
        family, keys = _family(file, stated), Keys(file, stated)
        config, quantisation = family.config(keys), read_quantisation(keys)
        keys.refuse_unread(HARMLESS, NEUTRAL)
    if isinstance(config, EncoderConfig):
        config = replace(config, context=longest_text(path, config.context))
    return stated, family, config, quantisation


def _family(path: Path, stated: dict[str, Any]) -> Family:
    kinds = stated.get("architectures") or []
    family = by_model_type(stated.get("model_type"), kinds)
    if family is None:
        known = ", ".join(family.name for family in FAMILIES)
        raise WeightsError(path, f"model_type {stated.get('model_type')!r} is unknown; we run: {known}")
    if not all(isinstance(kind, str) and kind.endswith(family.kinds) for kind in kinds):
        what = "no decoder that generates text" if family.kinds == ("ForCausalLM",) else "no encoder that embeds text"
        raise WeightsError(path, f"architectures = {kinds!r}: {what}")
    return family
