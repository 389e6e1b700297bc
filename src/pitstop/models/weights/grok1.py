"""Grok-1 as it was published: a pickle for each leaf of a tree of parameters, `tensorNNNNN_HHH`, in the order in which JAX flattens it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from pitstop.errors import WeightsError
from pitstop.models.config import ModelConfig
from pitstop.models.families import grok1
from pitstop.models.keys import Keys
from pitstop.models.weights.files import CHECKPOINT, TOKENIZER_MODEL, TOKENIZERS, read_json_if_there, reading
from pitstop.models.weights.folder import HARMLESS, NEUTRAL
from pitstop.models.weights.pickles import QuantizedWeight8bit, read_pickle
from pitstop.models.weights.tensor import RawTensor, stored_note
from pitstop.models.weights.tokenizer_json import read_vocabulary
from pitstop.text.vocabulary import Vocabulary

_OUTSIDE = {"token_embd": "language_model/in_out_embed/embeddings", "output_norm": "language_model/rms_norm/scale"}
_BLOCK = {
    "attn_q": "multi_head_attention/query/w",
    "attn_k": "multi_head_attention/key/w",
    "attn_v": "multi_head_attention/value/w",
    "attn_output": "multi_head_attention/linear/w",
    "attn_norm": "rms_norm/scale",
    "post_attention_norm": "rms_norm_1/scale",
    "ffn_norm": "rms_norm_2/scale",
    "post_ffw_norm": "rms_norm_3/scale",
    "ffn_gate_inp": "router/w",
    "ffn_gate_exps": "moe/linear/w",
    "ffn_up_exps": "moe/linear_v/w",
    "ffn_down_exps": "moe/linear_1/w",
}
_FILE = re.compile(r"tensor(\d{5})_(\d{3})")
_SHARDS = 8
"""Devices that the weights were made for: matrices split by inputs among them have scales of their own in each part."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One file. shape: as stored, [experts,] in, out for a matrix. scales: the shape of its scales, () for a leaf of fp32."""

    path: str
    file: str
    shape: tuple[int, ...]
    scales: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Of the values; a few hundred bytes of the pickle come to them."""
        count = math.prod(self.shape)
        return count + 4 * math.prod(self.scales) if self.scales else 4 * count


def place(name: str) -> tuple[str, int | None]:
    """From GGUF's name of a tensor to the path of its leaf, and the expert's number in it."""
    stem = name.removesuffix(".weight")
    if not stem.startswith("blk."):
        return _OUTSIDE[stem], None
    _, layer, part = stem.split(".", 2)
    part, _, expert = part.partition(".")
    return f"transformer/decoder_layer_{layer}/{_BLOCK[part]}", int(expert) if expert else None


def leaves(config: ModelConfig) -> dict[str, Leaf]:
    """Every leaf by its path, numbered in order: modules by name, as text, so that layer 10 comes before layer 2.

    The scales' shapes are those of the release, made for eight devices.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in config.tensors().items():
        path, expert = place(name)
        stored = shape if len(shape) == 1 or name.startswith("token_embd") else shape[::-1]
        shapes[path] = stored if expert is None else (config.moe.experts, *stored)
    ordered = sorted(shapes, key=lambda path: path.rpartition("/")[::2])
    return {path: Leaf(path, f"tensor{i:05d}_000", shapes[path], _scales(path, shapes[path])) for i, path in enumerate(ordered)}


def _scales(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not path.startswith("transformer/") or not path.endswith("/w") or "/router/" in path:
        return ()
    by_inputs = path.endswith(("/linear_1/w", "multi_head_attention/linear/w"))
    return (*shape[:-2], _SHARDS if by_inputs else 1, shape[-1])


class Grok1Checkpoint:
    """An opened checkpoint (source.ModelSource). Use `open_grok1`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stated = read_json_if_there(path / "config.json")
        keys = Keys(path / "config.json", grok1.PUBLISHED | self._stated)
        self.config: ModelConfig = grok1.FAMILY.config(keys)
        keys.refuse_unread(HARMLESS, NEUTRAL)
        self._folder = path / CHECKPOINT if (path / CHECKPOINT).is_dir() else path
        self.leaves = leaves(self.config)
        self._check_files()
        # A block's experts are read one after the other, each from the same three leaves.
        self._read = lru_cache(maxsize=3)(read_pickle)

    def tensor(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        """The tensor that GGUF calls `name`, which must have row-major `shape`.

        8-bit matrices with one scale for an output stay so ("I8"); those with several become fp32, which holds their products exactly.
        Raises WeightsError, with the leaf's path, when the file is no such leaf.
        """
        path, expert = place(name)
        leaf = self.leaves[path]
        found = self._read(self._folder / leaf.file)
        stored = found.weight if isinstance(found, QuantizedWeight8bit) else found
        if stored.shape != leaf.shape:
            raise WeightsError(self._folder / leaf.file, f"has shape {list(stored.shape)}, expected {list(leaf.shape)}", path)
        pick = slice(None) if expert is None else expert
        turn = len(shape) > 1 and not name.startswith("token_embd")
        if isinstance(found, QuantizedWeight8bit):
            return _matrix(path, shape, found.weight[pick], found.scales[pick])
        values = stored[pick].T if turn else stored[pick]
        return RawTensor(path, "F32", shape, np.ascontiguousarray(values, np.float32))

    def vocabulary(self) -> Vocabulary:
        """The tokenizer's data, from the release's tokenizer.model, or from a tokenizer.json beside it."""
        if not any((self.path / name).exists() for name in TOKENIZERS):
            raise WeightsError(self.path, f"holds no {TOKENIZER_MODEL}; the release has it beside its code: add it")
        with reading(self.path, "does not hold a sound tokenizer"):
            return read_vocabulary(self.path, grok1.PUBLISHED | self._stated, self.config.vocab_size)

    def embedding(self) -> None:
        """It generates."""

    def notes(self) -> list[str]:
        """How the matrices are stored, and which of them become larger."""
        lines = [stored_note(("I8" if leaf.scales else "F32", leaf.shape) for leaf in self.leaves.values())]
        return [*lines, "8-bit matrices with several scales for an output are held in fp32"]

    def _check_files(self) -> None:
        files = {file.name for file in self._folder.iterdir() if _FILE.fullmatch(file.name)}
        if more := sorted(file for file in files if not file.endswith("_000")):
            raise WeightsError(self._folder / more[0], "is a part for a second host; only checkpoints of one host are read")
        for path, leaf in self.leaves.items():
            if leaf.file not in files:
                raise WeightsError(
                    self._folder / leaf.file, f"is missing, leaf {leaf.file[6:11]} of {len(self.leaves)}; fetch it again", path
                )
        if more := sorted(files - {leaf.file for leaf in self.leaves.values()}):
            raise WeightsError(
                self._folder / more[0], f"no part of a checkpoint of {self.config.layers} layers, as config.json describes it"
            )


def is_grok1(path: Path) -> bool:
    """Whether the folder holds such a checkpoint, under `ckpt-0` or in itself."""
    return any((folder / "tensor00000_000").is_file() for folder in (path / CHECKPOINT, path))


def open_grok1(path: Path) -> Grok1Checkpoint:
    """Open the folder and check that every leaf has its file. Without config.json it is the published model.

    Raises WeightsError, one line naming the file and, where there is one, the leaf.
    """
    with reading(path, "is no sound checkpoint"):
        return Grok1Checkpoint(path)


def _matrix(path: str, shape: tuple[int, ...], weight: np.ndarray, scales: np.ndarray) -> RawTensor:
    """weight [in, out] int8, scales [blocks of in, blocks of out] → [out, in]."""
    inputs, outputs = weight.shape
    scales = np.repeat(scales.astype(np.float32), outputs // scales.shape[1], axis=1)
    if len(scales) == 1:
        rows = np.empty((outputs, 4 + inputs), np.uint8)
        rows[:, :4] = scales.T.copy().view(np.uint8)
        rows[:, 4:] = weight.T.view(np.uint8)
        return RawTensor(path, "I8", shape, rows)
    values = weight.T * np.repeat(scales.T, inputs // len(scales), axis=1)
    return RawTensor(path, "F32", shape, np.ascontiguousarray(values, np.float32))
