"""Writing a model as a Hugging Face folder with integer weights, in the layout of the compressed-tensors library, whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from pitstop.errors import ConfigError, WeightsError
from pitstop.models.families import by_model_type
from pitstop.models.families.family import Family
from pitstop.models.weights.compressed import KEY
from pitstop.models.weights.files import INDEX, SINGLE, read_json
from pitstop.models.weights.source import ModelSource
from pitstop.precision.config_json import config_json, quantization_config
from pitstop.precision.decoder import fp32
from pitstop.precision.grid import Rounded
from pitstop.precision.scheme import Scheme
from pitstop.precision.tokenizer_files import tokenizer_files

SHARD = 2 << 30
"""Bytes of tensors in one file, about: so much memory the writing takes."""
_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "LICENSE",
)
"""Files of a folder that are taken over as they are."""


def stored_dtype(source: ModelSource) -> torch.dtype:
    """Of what stays whole: the embedding's; for one of integers fp16, or bf16 where a family's values pass fp16's range."""
    name = "token_embd.weight"
    kind = source.tensor(name, source.config.tensors()[name]).kind
    return _DTYPES.get(kind, torch.bfloat16 if _family(source).norm_offset else torch.float16)


def check_room(source: ModelSource, schemes: Mapping[str, Scheme], out: Path, also: int = 0) -> None:
    """Raise ConfigError when the disk of `out` cannot hold the folder and `also` bytes more."""
    size = stored_dtype(source).itemsize
    needed = also + sum(
        math.prod(shape) * (schemes[name].bits / 8 if name in schemes else size) for name, shape in source.config.tensors().items()
    )
    free = shutil.disk_usage(_existing(out)).free
    if free < 1.15 * needed:
        raise ConfigError(
            f"OUT {out}: {needed / 2**20:.0f} MiB are needed there, {free / 2**20:.0f} MiB are free; free some, or choose another disk"
        )


class FolderWriter:
    """Writes a folder's parts into `path`, tensor after tensor. `changed`: tensors that training changed, by our names."""

    def __init__(self, source: ModelSource, schemes: Mapping[str, Scheme], path: Path, shard: int = SHARD) -> None:
        self._source, self._schemes, self._path, self._limit = source, schemes, path, shard
        self._family, self._dtype = _family(source), stored_dtype(source)
        self._waiting: dict[str, torch.Tensor] = {}
        self._placed: list[list[str]] = []
        path.mkdir(parents=True)

    def add(self, name: str, rounded: Rounded) -> None:
        """The matrix `name`, in Hugging Face's order of rows."""
        order = _rows(self._source, name, len(rounded.codes))
        module = self._family.hugging_face(name).removesuffix(".weight")
        scheme, grid = rounded.grid.scheme, rounded.grid
        self._put(f"{module}.weight_packed", _packed(rounded.codes[order], scheme))
        self._put(f"{module}.weight_scale", grid.scales[order].to(self._dtype))
        self._put(f"{module}.weight_shape", torch.tensor(rounded.codes.shape, dtype=torch.int64))
        if not scheme.symmetric:
            self._put(f"{module}.weight_zero_point", _packed(grid.zeros[order].T, scheme).T.contiguous())

    def add_whole(self, changed: Mapping[str, torch.Tensor] | None = None) -> None:
        """Everything that is not rounded. changed: fp32 values to take in the place of the source's."""
        for name in self._source.config.tensors():
            if name not in self._schemes:
                values = changed[name] if changed and name in changed else fp32(self._source, name)
                if self._family.norm_offset and "norm." in name:
                    values = values - self._family.norm_offset
                order = _rows(self._source, name, len(values))
                self._put(self._family.hugging_face(name), values[order].to(self._dtype).contiguous())

    def finish(self) -> None:
        """The last tensors, their index, config.json and the tokenizer's files."""
        self._flush()
        if len(self._placed) == 1:
            (self._path / _shard(0)).rename(self._path / SINGLE)
        else:
            self._index()
        self._write("config.json", json.dumps(self._config(), indent=2))
        source = self._source.path
        if source.is_dir():
            for name in _COPIED:
                if (source / name).is_file():
                    shutil.copyfile(source / name, self._path / name)
            return
        for name, text in tokenizer_files(self._source.vocabulary()).items():
            self._write(name, text)

    def _config(self) -> dict[str, Any]:
        source, dtype = self._source, str(self._dtype).removeprefix("torch.")
        if source.path.is_dir():
            stated = {key: value for key, value in read_json(source.path / "config.json").items() if key != KEY}
        else:
            vocabulary = source.vocabulary()
            ids = {"bos_token_id": vocabulary.bos, "eos_token_id": vocabulary.eos, "torch_dtype": dtype}
            stated = config_json(source.config, source.path) | ids
        return stated | quantization_config(source.config, self._schemes, self._family.hugging_face)

    def _put(self, name: str, tensor: torch.Tensor) -> None:
        self._waiting[name] = tensor.contiguous()
        if sum(held.nbytes for held in self._waiting.values()) > self._limit:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            save_file(self._waiting, self._path / _shard(len(self._placed)), metadata={"format": "pt"})
            self._placed.append(list(self._waiting))
            self._waiting = {}

    def _index(self) -> None:
        count, placed = len(self._placed), {}
        for number, names in enumerate(self._placed):
            final = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
            (self._path / _shard(number)).rename(self._path / final)
            placed |= dict.fromkeys(names, final)
        self._write(INDEX, json.dumps({"metadata": {}, "weight_map": placed}, indent=2))

    def _write(self, name: str, text: str) -> None:
        (self._path / name).write_text(text, "utf-8")


@contextmanager
def explained(out: Path) -> Iterator[None]:
    """A full disk and the like as one line."""
    try:
        yield
    except OSError as error:
        full = error.errno == errno.ENOSPC
        raise ConfigError(f"OUT {out}: {'the disk is full; free some space' if full else error}") from error
    except Exception as error:  # the safetensors library has its own errors for what the system says
        if "os error 28" in str(error).lower() or "no space" in str(error).lower():
            raise ConfigError(f"OUT {out}: the disk is full; free some space") from error
        raise


def publish(part: Path, out: Path) -> None:
    """Make the finished folder `part` appear as `out`, at once: what lies there is on the disk before it has that name."""
    for file in part.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    part.rename(out)


def _shard(number: int) -> str:
    return f"part-{number:05d}.safetensors"


def _existing(path: Path) -> Path:
    return next(parent for parent in [path, *path.absolute().parents] if parent.exists())


def _family(source: ModelSource) -> Family:
    family = by_model_type(source.config.architecture)
    if family is None or family.name.startswith("grok"):
        raise WeightsError(source.path, f"{source.config.architecture} is not written as a folder here; choose a model of another family")
    return family


def _rows(source: ModelSource, name: str, count: int) -> torch.Tensor | slice:
    """Where GGUF put rotary pairs side by side, what brings the rows of q and k (and their biases) back to Hugging Face's order."""
    config = source.config
    if not config.rope_interleaved or name.split(".")[-2] not in ("attn_q", "attn_k"):
        return slice(None)
    return torch.arange(count).view(-1, config.head_dim // 2, 2).transpose(1, 2).flatten()


def _packed(codes: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """Signed codes int8 [rows, n] → int32 [rows, ⌈n · bits / 32⌉], unsigned from the lowest bits on, the rest of the last word 0."""
    per_word = 32 // scheme.bits
    unsigned = (codes.numpy().astype(np.int16) - scheme.low).astype(np.uint8)
    unsigned = np.pad(unsigned, ((0, 0), (0, -unsigned.shape[1] % per_word)))
    octets = unsigned if scheme.bits == 8 else unsigned[:, ::2] | unsigned[:, 1::2] << 4
    return torch.from_numpy(np.ascontiguousarray(octets).view(np.int32).copy())
