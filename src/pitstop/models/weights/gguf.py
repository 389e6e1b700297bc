"""GGUF model files, memory-mapped. Imports no torch: a tensor is a numpy view of the file until it is dequantised."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType

from pitstop.errors import WeightsError
from pitstop.models.config import ModelConfig
from pitstop.models.embedding import Embedding
from pitstop.models.weights.files import reading
from pitstop.models.weights.gguf_keys import EXPERT, ROPE_DIVISORS, read_config
from pitstop.models.weights.tensor import KINDS, RawTensor, stored_note
from pitstop.text.tokenizer import begins_with_bos
from pitstop.text.vocabulary import Vocabulary
from pitstop.types import Pooling

POOLING: dict[int, Pooling | None] = {0: None, 1: "mean", 2: "cls", 3: "last"}
"""By GGUF's numbers."""

_TRUNCATED = "the file is truncated; fetch it again"


class ModelFile:
    """An opened GGUF file (source.ModelSource). Use `open_gguf`."""

    def __init__(self, path: Path, reader: GGUFReader) -> None:
        self.path = path
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._keys = {key: field.contents() for key, field in reader.fields.items()}
        shapes = {name: tuple(tensor.shape[::-1].tolist()) for name, tensor in self._tensors.items()}
        self._shapes: dict[str, tuple[int, ...]] = shapes
        self.config: ModelConfig = read_config(path, self._keys, shapes, self._rope_divisors)

    def tensor(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        """The tensor `name`, which must have row-major `shape`.

        Raises WeightsError when it is missing, has another shape, or is of a kind that we do not read.
        """
        if part := EXPERT.fullmatch(name):
            whole = self._stored(part[1] + part[3], (self.config.moe.experts, *shape))
            return RawTensor(name, whole.kind, shape, whole.data[int(part[2])])
        if shape[:1] == (1,):  # a single row is a vector here
            whole = self._stored(name, shape[1:])
            return RawTensor(name, whole.kind, shape, whole.data[None])
        return self._stored(name, shape)

    def _stored(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        """A whole tensor of the file."""
        stored = self._tensors.get(name)
        if stored is None:
            raise WeightsError(self.path, "is missing; the file is incomplete", name)
        if self._shapes[name] != shape:
            raise WeightsError(self.path, f"has shape {list(self._shapes[name])}, expected {list(shape)}", name)
        kind = stored.tensor_type.name
        if kind not in KINDS:
            raise WeightsError(self.path, f"is stored as {kind}; we read {', '.join(KINDS)}", name)
        return RawTensor(name, kind, shape, stored.data)

    def vocabulary(self) -> Vocabulary:
        """The tokenizer's data. Raises WeightsError when a part is missing or inconsistent."""
        tokens = self._listed("tokens", str)
        types = self._listed("token_type", int, [1] * len(tokens))
        if not len(tokens) == len(types) == self.config.vocab_size:
            raise WeightsError(self.path, f"{len(tokens)} tokens, {len(types)} token types, but a vocabulary of {self.config.vocab_size}")
        if self._tokenizer("add_eos_token", bool, False):
            raise WeightsError(self.path, "tokenizer.ggml.add_eos_token is not honoured; choose a model without it")
        model, pre = self._tokenizer("model", str), self._tokenizer("pre", str, "default")
        spaced = model == "llama"  # SentencePiece, whose texts begin with bos and a space unless the file says otherwise
        return Vocabulary(
            model=model,
            pre=pre,
            tokens=tokens,
            types=types,
            merges=self._listed("merges", str, []),
            bos=self._token_id("bos_token_id"),
            eos=self._token_id("eos_token_id"),
            add_bos=self._tokenizer("add_bos_token", bool, spaced or begins_with_bos(pre)),
            chat_template=self._stated("tokenizer.chat_template", str, "") or None,
            scores=self._listed("scores", float, []) if spaced else [],
            add_space=spaced and self._tokenizer("add_space_prefix", bool, True),
        )

    def embedding(self) -> Embedding | None:
        """As the file's pooling_type says. Raises WeightsError for one that we do not have."""
        name = f"{self._keys['general.architecture']}.pooling_type"
        kind = self._stated(name, int, 0)
        if kind not in POOLING:
            raise WeightsError(self.path, f"{name} = {kind} is not honoured; we have {', '.join(map(str, POOLING))}")
        pooling = POOLING[kind]
        return Embedding(pooling) if pooling else None

    def notes(self) -> list[str]:
        """How the matrices are stored."""
        return [stored_note((kind, shape) for _, kind, shape, _ in self.listing())]

    def listing(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """Every tensor of the file: name, kind, row-major shape, bytes."""
        return [(name, tensor.tensor_type.name, self._shapes[name], int(tensor.n_bytes)) for name, tensor in self._tensors.items()]

    def _rope_divisors(self) -> np.ndarray:
        return self.tensor(ROPE_DIVISORS, self._shapes[ROPE_DIVISORS]).dequantize()

    def _stated(self, key: str, kind: type, default: Any = None) -> Any:
        value = self._keys.get(key, default)
        if not isinstance(value, kind):
            state = "is missing" if value is None else f"is not a {kind.__name__}"
            raise WeightsError(self.path, f"{key} {state}")
        return value

    def _tokenizer(self, key: str, kind: type, default: Any = None) -> Any:
        return self._stated(f"tokenizer.ggml.{key}", kind, default)

    def _listed(self, key: str, kind: type, default: list[Any] | None = None) -> list[Any]:
        """A list of the tokenizer's, with nothing in it but `kind`."""
        values = self._tokenizer(key, list, default)
        if not set(map(type, values)) <= {kind}:
            raise WeightsError(self.path, f"tokenizer.ggml.{key} is not a list of {kind.__name__}")
        return values

    def _token_id(self, key: str) -> int | None:
        if f"tokenizer.ggml.{key}" not in self._keys:
            return None
        token = self._tokenizer(key, int)
        if not 0 <= token < self.config.vocab_size:
            raise WeightsError(self.path, f"tokenizer.ggml.{key} = {token} is outside the vocabulary of {self.config.vocab_size}")
        return token


def open_gguf(path: str | os.PathLike[str]) -> ModelFile:
    """Map the file at `path` and check its structure: every tensor lies within the file, every key is honoured.

    Raises WeightsError, one line naming the file and, where there is one, the tensor.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise WeightsError(path, f"cannot be read: {error.strerror}") from error
    if not magic:
        raise WeightsError(path, "the file is empty; fetch it again")
    if magic != b"GGUF":
        raise WeightsError(path, "not a GGUF file")
    try:
        with reading(path, "not a sound GGUF file"):
            return ModelFile(path, _Reader(path))
    except EOFError as error:
        raise WeightsError(path, f"{_TRUNCATED} ({error})") from error


class _Reader(GGUFReader):
    """The library's reader with bounds checked and arrays read at once.

    The library makes two or three numpy views for every element of every array, which takes seconds for a vocabulary.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(path)

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: str | None = None) -> np.ndarray:
        if self.byte_order != "I":
            raise ValueError("its byte order is not this machine's")
        count, size = int(count), np.dtype(dtype).itemsize
        if offset + count * size > self.data.size:
            raise EOFError(f"{count * size} bytes wanted at {offset}, the file has {self.data.size}")
        return np.frombuffer(self.data, dtype, count, offset)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[np.ndarray], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        start = orig_offs + 12
        if kind == GGUFValueType.STRING:
            parts, end = self._strings(start, count)
        elif kind in self.gguf_scalar_to_np:
            parts = [self._get(start, self.gguf_scalar_to_np[kind], count)]
            end = start + parts[0].nbytes
        else:
            raise ValueError(f"an array of {kind.name} at {orig_offs} is not supported")
        return end - orig_offs, parts, list(range(len(parts))), [GGUFValueType.ARRAY, kind]

    def _strings(self, offset: int, count: int) -> tuple[list[np.ndarray], int]:
        """The bytes of `count` length-prefixed strings, and the offset after them."""
        raw = self.data.view(np.ndarray)
        length_at = struct.Struct("<Q").unpack_from
        parts = []
        for _ in range(count):
            start = offset + 8
            if start > raw.size or (offset := start + length_at(raw, offset)[0]) > raw.size:
                raise EOFError(f"a string at {start - 8} passes the end of the file at {raw.size}")
            parts.append(raw[start:offset])
        return parts, offset

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        for field in fields:
            _, name, _, dims, kind, offset = field.parts
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(int(kind[0]))]
            if start_offs + int(offset[0]) + math.prod(dims.tolist()) // block * size > self.data.size:
                raise WeightsError(self._path, _TRUNCATED, str(name.tobytes(), "utf-8"))
        super()._build_tensors(start_offs, fields)
