"""A LoRA adapter as PEFT saves it: adapter_config.json and adapter_model.safetensors in a folder, for one decoder. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pitstop.config import Adapter
from pitstop.errors import InvalidRequest, WeightsError
from pitstop.models.config import ModelConfig
from pitstop.models.families import by_model_type
from pitstop.models.keys import Keys
from pitstop.models.weights.files import read_json
from pitstop.models.weights.shards import Entry, file_entries
from pitstop.models.weights.tensor import RawTensor

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"

PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""Matrices of a block that may have an update, by GGUF's names."""

HARMLESS = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "ensure_weight_tying",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "torch_dtype",
    }
)
"""Keys of adapter_config.json that matter to training, or repeat what the tensors say."""
NEUTRAL: dict[str, Any] = {
    "alpha_pattern": {},
    "corda_config": {},
    "eva_config": {},
    "fan_in_fan_out": False,
    "layer_replication": [],
    "loftq_config": {},
    "lora_bias": False,
    "megatron_config": {},
    "modules_to_save": [],
    "rank_pattern": {},
    "target_parameters": [],
    "trainable_token_indices": [],
    "use_bdlora": False,
    "use_dora": False,
    "use_qalora": False,
}
"""Keys that change nothing at this value, and that we do not honour at any other."""

_UNTOUCHED = (True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights with which training leaves the model's own weights as they are."""

_NAME = re.compile(r"[A-Za-z0-9][\w.:/-]{0,127}", re.ASCII)
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")


class Pair(NamedTuple):
    """A matrix's update: + scale · up · down. down [rank, in] is PEFT's lora_A, up [out, rank] its lora_B."""

    down: RawTensor
    up: RawTensor


class AdapterFile:
    """An opened adapter: every key is honoured, every matrix has a place in the decoder and the shape for it.

    rank: of each update; scale: its factor; size: bytes of the matrices; base: the model that it says it was trained on, "" if it does not.
    """

    def __init__(self, path: Path, model: ModelConfig) -> None:
        """Raises WeightsError, which names the file and the key or the tensor."""
        self.path = path
        self._model = model
        if not isinstance(model, ModelConfig):
            raise WeightsError(path, f"{model.architecture} is an encoder, and adapters of encoders are not honoured")
        self._stated = _config_bytes(path)
        keys = Keys(path / CONFIG, read_json(path / CONFIG))
        self.rank, self.scale, self.base = _read(keys)
        self._entries = self._place(file_entries(path / WEIGHTS))
        self._check(keys)
        self.size = sum(entry.end - entry.begin for pair in self._entries.values() for _, entry in pair.values())
        self.digest = ""
        """Of all that it holds, known once `layers` has been read to its end."""

    def layers(self) -> Iterator[dict[str, Pair]]:
        """Of each layer in turn, the updates by part. Raises WeightsError for a matrix that is stored in a way that we do not read."""
        digest = hashlib.sha256(self._stated)
        for layer in range(self._model.layers):
            pairs = {}
            for part in PARTS:
                found = self._entries.get(f"blk.{layer}.{part}")
                if found is not None:
                    pairs[part] = Pair(*(found[kind][1].map(found[kind][0]) for kind in "AB"))
                    for tensor in pairs[part]:
                        digest.update(f"{tensor.name} {tensor.kind} {tensor.shape}".encode())
                        digest.update(np.ascontiguousarray(tensor.data))
            yield pairs
        self.digest = digest.hexdigest()[:16]

    def read(self) -> None:
        """All of it, for its digest. Raises WeightsError for a number that is none."""
        for pairs in self.layers():
            for pair in pairs.values():
                for tensor in pair:
                    if not np.isfinite(tensor.dequantize()).all():
                        raise WeightsError(self.path / WEIGHTS, "holds an infinity or NaN", tensor.name)

    def _place(self, entries: dict[str, Entry]) -> dict[str, dict[str, tuple[str, Entry]]]:
        """By the stem of GGUF's name of a matrix: A and B, each with its own name."""
        places = _places(self.path, self._model)
        placed: dict[str, dict[str, tuple[str, Entry]]] = {}
        for name, entry in entries.items():
            match = _TENSOR.fullmatch(name)
            if match is None:
                raise WeightsError(self.path / WEIGHTS, "is no LoRA matrix of a linear layer, and nothing else is honoured", name)
            if match[1] not in places:
                raise WeightsError(
                    self.path / WEIGHTS,
                    f"has no place in this {self._model.architecture} model of {self._model.layers} layers: adapters may change the q, k, "
                    "v, o, gate, up and down projections of its dense layers, and nothing else",
                    name,
                )
            placed.setdefault(places[match[1]], {})[match[2]] = name, entry
        if not placed:
            raise WeightsError(self.path / WEIGHTS, "holds no matrices")
        return placed

    def _check(self, keys: Keys) -> None:
        shapes, file = self._model.tensors(), self.path / WEIGHTS
        for stem, pair in self._entries.items():
            out, width = shapes[f"{stem}.weight"]
            for kind, expected in (("A", (self.rank, width)), ("B", (out, self.rank))):
                if kind not in pair:
                    (other, _), *_ = pair.values()
                    raise WeightsError(file, f"stands without its lora_{kind}; save the adapter again", other)
                name, entry = pair[kind]
                if entry.shape != expected:
                    why = f"has shape {list(entry.shape)}, expected {list(expected)} by r = {self.rank} and this model's sizes"
                    raise WeightsError(file, f"{why}; is the adapter for another model?", name)
        targets = keys.get("target_modules")
        for target in targets if isinstance(targets, list) else []:
            if not any(f".{target}.lora_" in f".{name}" for pair in self._entries.values() for name, _ in pair.values()):
                raise keys.refuse("target_modules", f"names {target}, of which {WEIGHTS} holds nothing")


def read_adapter(name: str, path: str | os.PathLike[str], model: ModelConfig) -> Adapter:
    """The adapter in the folder `path`, read once as a whole. Raises InvalidRequest naming `name` or `path`."""
    check_name(name)
    folder = Path(path).expanduser().absolute()
    try:
        file = AdapterFile(folder, model)
        file.read()
    except WeightsError as error:
        raise InvalidRequest(f"path: {error}", "path") from error
    except OSError as error:
        raise InvalidRequest(f"path: {folder} cannot be read: {error.strerror}", "path") from error
    return Adapter(name, str(folder), file.digest, file.rank, file.size, file.base)


def check_name(name: str) -> None:
    """Raise InvalidRequest for a name that no adapter may have."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"name: {name[:200]!r} is none; take 1 to 128 letters, digits and . _ : / -, a letter or digit first", "name")


def _config_bytes(path: Path) -> bytes:
    """Of adapter_config.json, once it is clear that the folder is one that we read."""
    if not path.is_dir():
        raise WeightsError(path, f"is no folder; give the one with {CONFIG} and {WEIGHTS} in it")
    if not (path / WEIGHTS).is_file():
        if (path / PICKLE).exists():
            raise WeightsError(path / PICKLE, f"is a pickle, which may run code when it is read; save the adapter as {WEIGHTS}")
        raise WeightsError(path, f"has no {WEIGHTS}")
    if not (path / CONFIG).is_file():
        raise WeightsError(path, f"has no {CONFIG}")
    return (path / CONFIG).read_bytes()


def _read(keys: Keys) -> tuple[int, float, str]:
    """(rank, scale, base). Raises WeightsError for what we do not honour."""
    for name, only in (("peft_type", "LORA"), ("task_type", "CAUSAL_LM"), ("bias", "none")):
        keys.choice(name, {only: None}, only)
    rank, alpha = keys.integer("r"), keys.number("lora_alpha")
    scale = alpha / (math.sqrt(rank) if keys.flag("use_rslora") else rank)
    if keys.get("init_lora_weights", True) not in _UNTOUCHED:
        raise keys.refuse("init_lora_weights", "changes the model's own weights, too; convert the adapter to plain LoRA when you save it")
    targets = keys.get("target_modules")
    if not (targets is None or isinstance(targets, str) or (isinstance(targets, list) and all(isinstance(each, str) for each in targets))):
        raise keys.refuse("target_modules", "is neither a list of names nor a pattern")
    base = keys.get("base_model_name_or_path", "")
    keys.refuse_unread(HARMLESS, NEUTRAL, "an adapter")
    return rank, scale, base if isinstance(base, str) else json.dumps(base)


def _places(path: Path, model: ModelConfig) -> dict[str, str]:
    """From a module's name in Hugging Face's model to the stem of GGUF's name of its matrix, for those that may have an update."""
    family = by_model_type(model.architecture)
    if family is None:
        raise WeightsError(path, f"adapters for {model.architecture} models are not honoured")
    return {
        family.hugging_face(name).removesuffix(".weight"): name.removesuffix(".weight")
        for name in model.tensors()
        if name.startswith("blk.") and name.endswith(".weight") and name.split(".", 2)[2].removesuffix(".weight") in PARTS
    }
