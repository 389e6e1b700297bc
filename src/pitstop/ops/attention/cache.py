"""append and seal by Triton kernels (cache_kernels.py). Their grids come of shapes alone: nothing is read back, and items may be padded
with (0, 0, 0, 0, -1, 0), which do nothing."""

from __future__ import annotations

import torch

from pitstop.ops import gpu
from pitstop.ops.attention import plan
from pitstop.ops.attention.layout import Layout
from pitstop.ops.attention.plan import Heads
from pitstop.ops.attention.triton import ALONG
from pitstop.ops.dispatch import Declined
from pitstop.ops.row_tiles import aligned, refuse, unit
from pitstop.types import SEGMENT

TOKENS = 32
"""That a block appends."""

LINES = 32
"""Of those that share no range with others, a block encodes as many."""


def append_constants(head_dim: int) -> dict[str, int]:
    """The constants that `append` is compiled with."""
    return {"DIM": head_dim, "D": Heads(1, 1, head_dim).padded, "TOKENS": TOKENS, "UNIT": unit(head_dim)}


def seal_constants(head_dim: int, layout: Layout) -> dict[str, int]:
    """The constants that `seal` is compiled with: of keys, lines are channels; of values, tokens."""
    padded = Heads(1, 1, head_dim).padded
    found = {"DIM": head_dim, "LEAD": layout.lead}
    planes, leads = {"keys": layout.keys, "values": layout.values}, layout.first()
    for (name, plane), lead in zip(planes.items(), leads, strict=True):
        along = ALONG[name][plane.ranges]
        lines, length = (padded, SEGMENT) if name == "keys" else (SEGMENT, padded)
        prefix = name.removesuffix("s").upper()
        found |= {
            f"{prefix}_BITS": plane.bits,
            f"{prefix}_ALONG": along,
            f"{prefix}_HALVES": plane.bytes(head_dim) // 2,
            f"{prefix}_LEAD_HALVES": lead.bytes(head_dim) // 2,
            f"{prefix}_TALL": lines if along == 1 else LINES,
            f"{prefix}_WIDE": LINES if along == 1 else length,
        }
    return found | {"KEY_PARTS": _parts(layout, head_dim)[0]}


def _parts(layout: Layout, head_dim: int) -> tuple[int, int]:
    """Blocks that work on a head's keys, and on its values."""
    keys = SEGMENT if ALONG["keys"][layout.keys.ranges] == 1 else head_dim
    values = head_dim if ALONG["values"][layout.values.ranges] == 1 else SEGMENT
    return -(-keys // LINES), -(-values // LINES)


OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
"""What the compiler is told."""


def append(k: torch.Tensor, v: torch.Tensor, tails: torch.Tensor, items: torch.Tensor) -> Declined | None:
    if reason := refuse(k=k, v=v) or _refuse(tails, items):
        return reason
    from pitstop.ops.attention import cache_kernels

    kv_heads, head_dim = k.shape[1:]
    k, v, step = aligned(k), aligned(v), unit(head_dim)
    if len(items):
        cache_kernels.append[len(items), kv_heads, SEGMENT // TOKENS](
            k, v, tails, items, k.stride(0) // step, v.stride(0) // step, kv_heads, **append_constants(head_dim), **OPTIONS
        )
    return None


def seal(tails: torch.Tensor, pages: torch.Tensor, items: torch.Tensor, table: torch.Tensor, layout: Layout) -> Declined | None:
    if reason := _refuse(tails, items, table):
        return reason
    kv_heads, head_dim = tails.shape[1], tails.shape[3] // SEGMENT
    if reason := plan.refuse(Heads(kv_heads, kv_heads, head_dim), layout):
        return Declined(reason)
    if pages.dtype is not torch.uint8 or pages.stride() != (pages.shape[1], 1) or pages.shape[1] % 16 or pages.device != tails.device:
        return Declined("pages must be contiguous uint8, of a multiple of 16 bytes, beside the tails")
    from pitstop.ops.attention import cache_kernels

    if len(items):
        cache_kernels.seal[len(items), kv_heads, sum(_parts(layout, head_dim))](
            tails, pages, pages.view(torch.float16), items, table, pages.stride(0) // 16, kv_heads,
            **seal_constants(head_dim, layout), **OPTIONS,
        )  # fmt: skip
    return None


def _refuse(tails: torch.Tensor, *indices: torch.Tensor) -> Declined | None:
    if reason := gpu.refuse(tails=tails):
        return Declined(reason)
    if tails.dtype is not torch.float16 or not tails.is_contiguous():
        return Declined("tails must be contiguous float16")
    for index in indices:
        if index.dtype is not torch.int32 or not index.is_contiguous() or index.device != tails.device:
            return Declined("items and table must be contiguous int32 beside the tails")
    return None
