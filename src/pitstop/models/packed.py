"""Packed weights in a file that all workers of a model map: memory holds them once, and nothing is packed at the next start.

The file lies in the cache folder. It holds matrices, each at a multiple of 64 bytes, then an index (JSON), and last where that lies.
Mapped privately: what a worker writes there, by whatever mistake, is its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import math
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Protocol, TypeVar

import msgspec
import torch

from pitstop.config import cache_dir
from pitstop.models.weights.fetch import identity
from pitstop.models.weights.source import ModelSource
from pitstop.ops import dispatch, huge_pages
from pitstop.ops.linear import PackedLinear, Precision
from pitstop.ops.linear.packing import FLOATS, LAYOUT, PANEL, Kind

log = logging.getLogger(__name__)

SMALLEST = 1 << 24
"""Weights of a model that is worth a file."""

FREE = 1 << 30
"""Bytes of the disk that are left to others."""

_END = struct.Struct("<QQ8s")
"""Where the index begins and ends, and the mark."""
_MARK = b"PITPACK1"

T = TypeVar("T")


class Shelf(Protocol):
    """Where a model's packed matrices come from. size: bytes of memory that all who map them share."""

    size: int

    def get(self, name: str, activations: Precision, pack: Callable[[], PackedLinear]) -> PackedLinear:
        """The matrix of that name, which `pack` makes."""
        ...


class Own:
    """Memory of this process alone."""

    size = 0

    def get(self, name: str, activations: Precision, pack: Callable[[], PackedLinear]) -> PackedLinear:
        return pack()


def build(source: ModelSource, device: str, share: bool, make: Callable[[Shelf], T]) -> T:
    """What `make` makes of the source's matrices: mapped from their file where there is one or can be, else in memory of its own.

    share: whether there may be a file. make: is called once more where it must be written; then the matrices hold nothing.
    Raises what `make` raises.
    """
    weights = sum(map(math.prod, source.config.tensors().values()))
    if not share or device != "cpu" or "cpu" not in dispatch.active() or weights < SMALLEST:
        return make(Own())
    try:
        shelf: Shelf = _shelf(source, make)
    except OSError as error:
        log.warning("packed weights are this worker's own, not shared: %s", error)
        shelf = Own()
    return make(shelf)


def _shelf(source: ModelSource, make: Callable[[Shelf], object]) -> _Mapped:
    """Raises OSError where the file cannot be written or mapped."""
    folder, of = cache_dir() / "packed", identity(source.path)
    path = folder / _name(of)
    if (index := _read_index(path)) is None:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            if (index := _read_index(path)) is None:  # nobody else has written it meanwhile
                _clear(folder)
                _write(path, index := _Index(str(source.path.resolve()), of, {}), make)
    return _Mapped(path, index)


def _name(of: str) -> str:
    """of: a model's identity."""
    return f"{hashlib.sha256(f'{LAYOUT} {of}'.encode()).hexdigest()[:32]}.packed"


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _clear(folder: Path) -> None:
    """Remove what a killed process left, and files of models that are gone, that have changed or that were packed otherwise."""
    for path in folder.iterdir():
        index = _read_index(path)
        with contextlib.suppress(OSError):
            if index is not None and path.name == _name(identity(Path(index.source))):
                continue
        path.unlink()


class _Matrix(msgspec.Struct):
    """A PackedLinear's fields of these names, and where its data lies."""

    kind: Kind
    out_features: int
    in_features: int
    start: int
    size: int
    parts: list[_Matrix]


class _Index(msgspec.Struct):
    """source: path of the model. identity: of what lay there."""

    source: str
    identity: str
    matrices: dict[str, _Matrix]


def _read_index(path: Path) -> _Index | None:
    """None where no file is, or another one, or half of one."""
    try:
        with path.open("rb") as file:
            end = file.seek(-_END.size, os.SEEK_END)
            start, stop, mark = _END.unpack(file.read())
            if (stop, mark) != (end, _MARK):
                return None
            file.seek(start)
            return msgspec.json.decode(file.read(end - start), type=_Index)
    except (OSError, ValueError):  # of msgspec's, too
        return None


def _write(path: Path, index: _Index, make: Callable[[Shelf], object]) -> None:
    """Whole and on the disk, or not at all."""
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            writer = _Writer(file, index.matrices)
            make(writer)
            writer.close(index)
            os.fsync(file.fileno())
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


class _Writer:
    """Matrices go into the file; those that it gives hold nothing. Raises OSError where the disk becomes too full."""

    size = 0

    def __init__(self, file: IO[bytes], matrices: dict[str, _Matrix]) -> None:
        """matrices: where they are noted."""
        self._file = file
        self._matrices = matrices
        self._length = 0
        self._waiting = bytearray()  # written in whole chunks, which the system keeps in large pages

    def get(self, name: str, activations: Precision, pack: Callable[[], PackedLinear]) -> PackedLinear:
        packed = pack()
        self._matrices[name] = self._add(packed)
        return replace(packed, data=torch.empty(0), parts=())

    def close(self, index: _Index) -> None:
        text = msgspec.json.encode(index)
        self._waiting += text + _END.pack(self._length, self._length + len(text), _MARK)
        self._write(len(self._waiting))
        self._file.flush()

    def _add(self, packed: PackedLinear) -> _Matrix:
        parts = [self._add(part) for part in packed.parts]
        self._put(bytes(-self._length % huge_pages.ALIGNMENT))
        start = self._length
        self._put(memoryview(packed.data.view(-1).view(torch.uint8).numpy()))
        return _Matrix(packed.kind, packed.out_features, packed.in_features, start, self._length - start, parts)

    def _put(self, data: bytes | memoryview) -> None:
        self._waiting += data
        self._length += len(data)
        self._write(len(self._waiting) // huge_pages.CHUNK * huge_pages.CHUNK)

    def _write(self, size: int) -> None:
        if not size:
            return
        room = os.fstatvfs(self._file.fileno())
        if room.f_bavail * room.f_frsize < size + FREE:
            raise OSError(errno.ENOSPC, f"of the disk less than {FREE >> 20} MiB would be left", str(self._file.name))
        self._file.write(self._waiting[:size])
        del self._waiting[:size]


class _Mapped:
    """A file that was written."""

    def __init__(self, path: Path, index: _Index) -> None:
        self._matrices = index.matrices
        self._data = huge_pages.mapped(path)
        self.size = len(self._data)

    def get(self, name: str, activations: Precision, pack: Callable[[], PackedLinear]) -> PackedLinear:
        if name not in self._matrices:  # an earlier version put other matrices together
            return pack()
        return self._packed(self._matrices[name], activations)

    def _packed(self, matrix: _Matrix, activations: Precision) -> PackedLinear:
        data = self._data[matrix.start : matrix.start + matrix.size]
        if matrix.kind in FLOATS:
            data = data.view(FLOATS[matrix.kind]).view(-1, matrix.in_features, PANEL)
        parts = tuple(self._packed(part, activations) for part in matrix.parts)
        return PackedLinear(matrix.kind, matrix.out_features, matrix.in_features, data, activations, parts=parts)
