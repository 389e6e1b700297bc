"""How kernels for GPUs that work row by row see a tensor, and what tiles they take: the width of a row alone decides, so that the bits of a
row depend on nothing else."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pitstop.ops import gpu
from pitstop.ops.dispatch import Declined
from pitstop.ops.rows import strided

ELEMENTS = 1024
"""Of a tile, at least."""


class Tile(NamedTuple):
    """What one block works on. columns: a power of two, as many as a row has or its part of them; unit: numbers of which the start of every
    row is a multiple, so that the compiler may load 16 bytes at a time."""

    columns: int
    rows: int
    warps: int
    unit: int


def tile(width: int, most: int) -> Tile:
    """For rows of `width` fp32 numbers, of which at most `most`, a power of two, come into a tile."""
    columns = min(power_of_two(width), most)
    rows = max(1, ELEMENTS // columns)
    return Tile(columns, rows, min(16, max(1, rows * columns // 256)), unit(width))


def power_of_two(width: int) -> int:
    """The least that is not below."""
    return 1 << (width - 1).bit_length()


def unit(width: int) -> int:
    return 4 if width % 4 == 0 else 1


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x [rows, …, width] itself when each row is contiguous and starts where `Tile.unit` says, else a copy that does.

    Without it a neighbour's width would decide how numbers lie on threads, and so in which order they are added up.
    """
    x = strided(x) if x.dim() > 1 else x.contiguous()
    if unit(x.shape[-1]) == 4 and (x.data_ptr() % 16 or (x.dim() > 1 and x.stride(0) % 4)):
        return x.clone(memory_format=torch.contiguous_format)
    return x


def refuse(**tensors: torch.Tensor) -> Declined | None:
    """Why kernels for GPUs do not take these fp32 tensors, by name; None when they do."""
    if reason := gpu.refuse(**tensors):
        return Declined(reason)
    for name, tensor in tensors.items():
        if tensor.dtype is not torch.float32:
            return Declined(f"{name} must be float32")
    return None
