"""Folders made for tensor parallelism: `*-TP-NNN.safetensors` hold a part of each matrix, `*-TP-common.safetensors` whole ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pitstop.errors import WeightsError
from pitstop.models.weights.files import TENSOR_PARALLEL
from pitstop.models.weights.shards import Entry, file_entries
from pitstop.models.weights.tensor import RawTensor


@dataclass(frozen=True, slots=True)
class Joined:
    """A tensor in parts, in order, along `axis`."""

    parts: tuple[Entry, ...]
    axis: int

    @property
    def file(self) -> Path:
        return self.parts[0].file

    @property
    def kind(self) -> str:
        return self.parts[0].kind

    @property
    def stored(self) -> str:
        """How a note calls it."""
        return self.kind

    @property
    def shape(self) -> tuple[int, ...]:
        return _joined([part.shape for part in self.parts], self.axis)

    def map(self, name: str) -> RawTensor:
        """The tensor, copied together."""
        data = np.concatenate([part.map(name).data for part in self.parts], axis=self.axis)
        return RawTensor(name, self.kind, self.shape, data)


def tensor_parallel_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.safetensors") if TENSOR_PARALLEL.fullmatch(file.name))


def read_joined(folder: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Entry | Joined]:
    """Every tensor of the folder. A matrix in parts is joined along the axis along which they make up its `expected` shape.

    Raises WeightsError: a tensor that two files hold, a missing rank, parts that do not make up that shape.
    """
    whole: dict[str, Entry] = {}
    parts: dict[str, dict[int, Entry]] = defaultdict(dict)
    for file in tensor_parallel_files(folder):
        rank = TENSOR_PARALLEL.fullmatch(file.name)[1]
        for name, entry in file_entries(file).items():
            if name in whole or (rank == "common" and name in parts) or (rank != "common" and int(rank) in parts[name]):
                raise WeightsError(file, "stands here and in another file, too", name)
            if rank == "common":
                whole[name] = entry
            else:
                parts[name][int(rank)] = entry
    return whole | {name: _join(name, ranks, expected.get(name)) for name, ranks in parts.items() if ranks}


def _join(name: str, ranks: dict[int, Entry], shape: tuple[int, ...] | None) -> Joined:
    entries = tuple(ranks[rank] for rank in sorted(ranks))
    shapes = [entry.shape for entry in entries]
    if sorted(ranks) != list(range(len(ranks))):
        missing = next(rank for rank in range(len(ranks)) if rank not in ranks)
        raise WeightsError(entries[0].file, f"the part of rank {missing:03d} is missing; fetch the folder again", name)
    if len({(entry.kind, len(entry.shape)) for entry in entries}) > 1:
        raise WeightsError(entries[0].file, "its parts are of several kinds", name)
    axis = next((axis for axis in range(len(shapes[0])) if _joined(shapes, axis) == shape), None)
    if axis is None and shape is not None:
        raise WeightsError(entries[0].file, f"its {len(shapes)} parts, the first {list(shapes[0])}, do not make up {list(shape)}", name)
    return Joined(entries, axis or 0)


def _joined(shapes: list[tuple[int, ...]], axis: int) -> tuple[int, ...]:
    """The shape of parts laid along `axis`; () for parts that differ elsewhere."""
    others = {shape[:axis] + shape[axis + 1 :] for shape in shapes}
    first = shapes[0]
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :]) if len(others) == 1 else ()
