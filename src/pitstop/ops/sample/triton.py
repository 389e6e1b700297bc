"""The choices by Triton kernels (triton_kernels.py, draw_kernels.py)."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Declined
from pitstop.ops.row_tiles import aligned, power_of_two, refuse, unit

COLUMNS = 2048
"""Of a tile of `largest`, at most."""

DRAWN_COLUMNS = 4096
"""Of a tile of `drawn`, at most: a row has one block, which reads as much at once as it can."""

GROUPS = 512
"""Into which `drawn` divides a row, to be sure of at least so many of the likeliest. At most as many as columns."""


def largest_constants(vocab: int, count: int, first: bool) -> dict[str, int | bool]:
    """The constants that `largest` is compiled with. count: numbers that are left of a row."""
    columns = min(COLUMNS, power_of_two(count))
    return {"COUNT": count, "COLUMNS": columns, "UNIT": unit(vocab), "FIRST": first, "LAST": count <= columns}


def drawn_constants(vocab: int) -> dict[str, int]:
    """The constants that `drawn` is compiled with."""
    columns = min(DRAWN_COLUMNS, power_of_two(vocab))
    tiles = -(-vocab // columns)
    sizes = {"VOCAB": vocab, "COLUMNS": columns, "TILES": tiles, "SUMS": power_of_two(tiles)}
    return sizes | {"GROUPS": min(GROUPS, columns), "UNIT": unit(vocab)}


def options(columns: int) -> dict[str, int | bool]:
    """What the compiler is told."""
    return {"num_warps": max(1, columns // 256), "enable_fp_fusion": False}


def greedy(logits: torch.Tensor) -> torch.Tensor | Declined:
    if reason := refuse(logits=logits):
        return reason
    from pitstop.ops.sample import triton_kernels

    logits, (rows, vocab) = aligned(logits), logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    keys, count = ids, vocab  # of the first launch there are no keys yet
    while rows:
        constants = largest_constants(vocab, count, keys is ids)
        tiles = -(-count // constants["COLUMNS"])
        parts = torch.empty(rows, tiles, dtype=torch.int64, device=logits.device) if tiles > 1 else ids
        triton_kernels.largest[rows, tiles](
            logits, keys, parts, logits.stride(0) // unit(vocab), **constants, **options(constants["COLUMNS"])
        )
        if tiles == 1:
            break
        keys, count = parts, tiles
    return ids


def draw(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor | Declined:
    if reason := refuse(logits=logits):
        return reason
    from pitstop.ops.sample import draw_kernels

    logits, (rows, vocab) = aligned(logits), logits.shape
    constants = drawn_constants(vocab)
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    keys = torch.empty(rows, constants["TILES"] * constants["COLUMNS"], dtype=torch.int64, device=logits.device)
    if rows:
        draw_kernels.drawn[rows,](
            logits, draws.contiguous(), keys, ids, logits.stride(0) // unit(vocab), **constants, **options(constants["COLUMNS"])
        )
    return ids
