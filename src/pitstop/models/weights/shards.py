"""Tensors of a Hugging Face folder: one safetensors file or several with an index, memory-mapped."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from pitstop.errors import WeightsError
from pitstop.models.weights.files import INDEX, SINGLE, read_json, reading
from pitstop.models.weights.tensor import RawTensor

_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("u1")}
"""How the stored kinds are looked at: BF16 as bytes (RawTensor)."""
_INTEGERS = {"I8": np.dtype("i1"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
_AGAIN = "fetch the folder again"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies: bytes begin … end of `file`."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def map(self, name: str) -> RawTensor:
        """The tensor. Raises WeightsError for a kind that we do not read."""
        if self.kind not in _DTYPES:
            raise WeightsError(self.file, f"is stored as {self.kind}; we read {', '.join(_DTYPES)}", name)
        dtype = _DTYPES[self.kind]
        shape = self.shape if dtype.itemsize > 1 else (*self.shape[:-1], *(2 * size for size in self.shape[-1:] or (1,)))
        return RawTensor(name, self.kind, self.shape, self._map(dtype, shape))

    def integers(self, name: str) -> np.ndarray:
        """The tensor of integers. Raises WeightsError for another kind."""
        if self.kind not in _INTEGERS:
            raise WeightsError(self.file, f"is stored as {self.kind}, not as one of {', '.join(_INTEGERS)}", name)
        return self._map(_INTEGERS[self.kind], self.shape)

    def _map(self, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        return np.memmap(self.file, dtype, "r", self.begin, shape) if math.prod(shape) else np.empty(shape, dtype)

    @property
    def stored(self) -> str:
        """How a note calls it."""
        return self.kind


def read_entries(folder: Path) -> dict[str, Entry]:
    """Every tensor of the folder, by the name that it has there.

    Raises WeightsError: no weights, a shard that is missing or cut short, a tensor that its shard does not hold.
    """
    if not (folder / INDEX).is_file():
        if not (folder / SINGLE).is_file():
            raise WeightsError(folder, f"has neither {SINGLE} nor {INDEX}; weights of other formats are not read: {_AGAIN}, with these")
        return file_entries(folder / SINGLE)
    placed = read_json(folder / INDEX).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(file, str) and Path(file).name == file for file in placed.values()):
        raise WeightsError(folder / INDEX, "weight_map is not an object of tensors and the names of files beside it")
    files = sorted(set(placed.values()))
    held: dict[str, dict[str, Entry]] = {}
    for number, file in enumerate(files, 1):
        if not (folder / file).is_file():
            first = next(tensor for tensor, place in placed.items() if place == file)
            raise WeightsError(folder / file, f"is missing, shard {number} of {len(files)}; {_AGAIN}", first)
        held[file] = file_entries(folder / file)
    for tensor, file in placed.items():
        if tensor not in held[file]:
            raise WeightsError(folder / file, f"is missing here, though {INDEX} says so; {_AGAIN}", tensor)
    return {name: entry for entries in held.values() for name, entry in entries.items()}


def file_entries(path: Path) -> dict[str, Entry]:
    """From the file's header: its length (8 bytes, little endian), JSON, then the tensors' bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        if size < start:
            raise WeightsError(path, f"the file is truncated or no safetensors file ({size} bytes); {_AGAIN}")
        raw = file.read(start - 8)
    with reading(path, "not a sound safetensors file: its header does not read"):
        header = json.loads(raw)
        stated = {name: value for name, value in header.items() if name != "__metadata__"}
        entries = {
            name: Entry(path, value["dtype"], tuple(value["shape"]), *(start + offset for offset in value["data_offsets"]))
            for name, value in stated.items()
        }
    for name, entry in sorted(entries.items(), key=lambda item: item[1].end):
        if entry.end > size:
            raise WeightsError(path, f"the file is truncated; {_AGAIN}", name)
    try:
        with safe_open(path, "np"):
            pass
    except (SafetensorError, OSError) as error:
        raise WeightsError(path, f"not a sound safetensors file: {error}") from error
    return entries
