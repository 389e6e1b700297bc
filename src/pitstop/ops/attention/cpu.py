"""Paged attention by the native kernels."""

from __future__ import annotations

from functools import cache

import torch

from pitstop.ops import dispatch
from pitstop.ops.attention.layout import Layout
from pitstop.ops.dispatch import Declined
from pitstop.ops.rows import refuse, strided

_TAILS = (torch.float16, torch.float32)
_RANGES = ("none", "channel", "token", "segment")
_CODINGS = ("absolute", "closed", "open")


@cache
def _codes(layout: Layout) -> tuple[int, int, int]:
    """The layout as native takes it (csrc/planes.h): keys, values, lead."""
    keys, values = (p.bits | _RANGES.index(p.ranges) << 8 | _CODINGS.index(p.coding) << 12 for p in (layout.keys, layout.values))
    return keys, values, layout.lead


@cache
def _refuse_layout(layout: Layout, head_dim: int) -> Declined | None:
    if any(head_dim % plane.block for plane in (layout.values, layout.first()[1])):
        return Declined(f"values of {layout} with head_dim {head_dim}")
    return None


def _refuse_cache(tails: torch.Tensor, *indices: torch.Tensor) -> Declined | None:
    if tails.dtype not in _TAILS or not tails.is_cpu or not tails.is_contiguous():
        return Declined("tails must be contiguous float16 or float32 in host memory")
    for index in indices:
        if index.dtype is not torch.int32 or not index.is_contiguous():
            return Declined("items and table must be contiguous int32")
    return None


def _refuse_pages(pages: torch.Tensor) -> Declined | None:
    if pages.dtype is not torch.uint8 or not pages.is_contiguous():
        return Declined("pages must be contiguous uint8")
    return None


def _refuse_head(head_dim: int) -> Declined | None:
    if head_dim % 16 or head_dim > 256:
        return Declined(f"head_dim {head_dim} is not a multiple of 16 up to 256")
    return None


def _cache(tails: torch.Tensor, pages: torch.Tensor, items: torch.Tensor, table: torch.Tensor, layout: Layout) -> tuple[int, ...]:
    """What native takes of a cache, and of the items and the table that say what is meant in it."""
    slots, kv_heads, _, size = tails.shape
    memory = tails.data_ptr(), slots, pages.data_ptr(), *pages.shape, kv_heads, size // 128, tails.dtype is torch.float16, *_codes(layout)
    return *memory, items.data_ptr(), len(items), table.data_ptr(), len(table)


def append(k: torch.Tensor, v: torch.Tensor, tails: torch.Tensor, items: torch.Tensor) -> Declined | None:
    rows, kv_heads, head_dim = k.shape
    if reason := refuse(k=k, v=v) or _refuse_cache(tails, items) or _refuse_head(head_dim):
        return reason
    k, v = strided(k), strided(v)
    dispatch.native.append(
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        rows,
        tails.data_ptr(),
        len(tails),
        kv_heads,
        head_dim,
        tails.dtype is torch.float16,
        items.data_ptr(),
        len(items),
    )
    return None


def seal(tails: torch.Tensor, pages: torch.Tensor, items: torch.Tensor, table: torch.Tensor, layout: Layout) -> Declined | None:
    head_dim = tails.shape[3] // 128
    if reason := _refuse_cache(tails, items, table) or _refuse_pages(pages) or _refuse_head(head_dim) or _refuse_layout(layout, head_dim):
        return reason
    dispatch.native.seal(*_cache(tails, pages, items, table, layout))
    return None


def paged_attention(
    q: torch.Tensor,
    tails: torch.Tensor,
    pages: torch.Tensor,
    items: torch.Tensor,
    table: torch.Tensor,
    layout: Layout,
    scale: float,
    softcap: float,
    window: int,
    temperature_length: int,
    cap_first: bool,
) -> torch.Tensor | Declined:
    rows, heads, head_dim = q.shape
    if reason := refuse(q=q) or _refuse_cache(tails, items, table) or _refuse_head(head_dim):
        return reason
    if reason := _refuse_pages(pages) or _refuse_layout(layout, head_dim):
        return reason
    q = strided(q)
    out = dispatch.empty(rows, heads, head_dim)
    dispatch.native.clear(out.data_ptr(), out.numel())  # rows that no item names
    dispatch.native.paged_attention(
        q.data_ptr(),
        q.stride(0),
        rows,
        heads,
        *_cache(tails, pages, items, table, layout),
        scale,
        softcap,
        window,
        temperature_length,
        cap_first,
        out.data_ptr(),
    )
    return out
