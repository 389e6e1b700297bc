"""The choices by a Triton kernel (triton_kernels.py), which is launched until one tile holds what is left of a row."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Declined
from pitstop.ops.row_tiles import aligned, power_of_two, refuse, unit

COLUMNS = 2048
"""Of a tile, at most."""

MOST = 256
"""Candidates. Sorting more takes longer than torch does."""


def constants(vocab: int, count: int, k: int, first: bool, values: bool) -> dict[str, int | bool]:
    """The constants that `largest` is compiled with. count: numbers that are left of a row."""
    columns = columns_of(count, k)
    sizes = {"COUNT": count, "COLUMNS": columns, "KEPT": power_of_two(k), "UNIT": unit(vocab)}
    return sizes | {"FIRST": first, "LAST": count <= columns, "VALUES": values}


def columns_of(count: int, k: int) -> int:
    """Of a tile."""
    return min(COLUMNS, max(power_of_two(k), power_of_two(count)))


def options(columns: int) -> dict[str, int | bool]:
    """What the compiler is told."""
    return {"num_warps": max(1, columns // 256), "enable_fp_fusion": False}


def greedy(logits: torch.Tensor) -> torch.Tensor | Declined:
    return refuse(logits=logits) or _largest(logits, 1, None).flatten()


def candidates(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor] | Declined:
    if reason := refuse(logits=logits):
        return reason
    if k > MOST:
        return Declined(f"{k} candidates are more than {MOST}")
    values = torch.empty(len(logits), k, dtype=logits.dtype, device=logits.device)
    return values, _largest(logits, k, values)


def _largest(logits: torch.Tensor, k: int, values: torch.Tensor | None) -> torch.Tensor:
    """Ids [rows, k]; fills values."""
    from pitstop.ops.sample import triton_kernels

    logits, (rows, vocab) = aligned(logits), logits.shape
    ids = torch.empty(rows, k, dtype=torch.int64, device=logits.device)
    kept, keys, count = power_of_two(k), ids, vocab  # of the first launch there are no keys yet
    while rows:
        columns = columns_of(count, k)
        tiles = -(-count // columns)
        parts = torch.empty(rows, tiles, kept, dtype=torch.int64, device=logits.device) if tiles > 1 else ids
        triton_kernels.largest[rows, tiles](
            logits, keys, parts, ids, ids if values is None else values, logits.stride(0) // unit(vocab), k,
            **constants(vocab, count, k, keys is ids, values is not None), **options(columns),
        )  # fmt: skip
        if tiles == 1:
            break
        keys, count = parts, tiles * kept
    return ids
