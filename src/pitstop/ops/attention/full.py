"""Attention of whole texts, every row at all of its text's rows, without a cache: by the native kernels, and in plain torch."""

from __future__ import annotations

import torch
from torch.nn import functional

from pitstop.ops.attention import cpu
from pitstop.ops.attention.layout import RAW32
from pitstop.ops.attention.ref import masked_attention
from pitstop.ops.dispatch import Declined
from pitstop.ops.rows import refuse
from pitstop.ops.rowwise import one_thread
from pitstop.types import SEGMENT

QUERIES = 96
"""As many as the native kernel takes through a segment at once: what it keeps meanwhile is for these, not for a text's."""


def by_native(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], scale: float) -> torch.Tensor | Declined:
    """A row sees what comes before it and itself, so each of a text's queries stands at its last position. As query heads that share a key
    head up to QUERIES of them are one row there, for which a segment is read once."""
    if reason := refuse(q=q, k=k, v=v):
        return reason
    rows, heads, dim = q.shape
    texts = _place(lengths)
    segments = max((slots[-1] for _, _, slots in texts), default=-1) + 1
    tails = torch.empty(segments, heads, 2, SEGMENT * dim)
    items = [
        (first + i * SEGMENT, min(SEGMENT, length - i * SEGMENT), i * SEGMENT, slot, -1, 0)
        for first, length, slots in texts
        for i, slot in enumerate(slots)
    ]
    if reason := cpu.append(k, v, tails, torch.tensor(items, dtype=torch.int32).view(-1, 6)):
        return reason
    pages = tails.view(torch.uint8).view(segments, -1)  # a raw page is a tail
    out = torch.empty(rows, heads, dim)
    for first, length, slots in texts:
        count = -(-length // QUERIES)
        wide = -(-length // count)
        queries = functional.pad(q[first : first + length], (0, 0, 0, 0, 0, count * wide - length))
        queries = queries.view(count, wide, heads, dim).transpose(1, 2).reshape(count, heads * wide, dim)
        item = torch.tensor([(row, 1, length - 1, slots[-1], -1, 0) for row in range(count)], dtype=torch.int32)
        part = cpu.paged_attention(queries, tails, pages, item, torch.tensor(slots, dtype=torch.int32), RAW32, scale, 0.0, -1, 0, False)
        if isinstance(part, Declined):
            return part
        out[first : first + length] = part.view(count, heads, wide, dim).transpose(1, 2).reshape(count * wide, heads, dim)[:length]
    return out


def _place(lengths: list[int]) -> list[tuple[int, int, list[int]]]:
    """Of each text: its first row, its length, a slot for each of its segments."""
    texts, row, slot = [], 0, 0
    for length in lengths:
        count = -(-length // SEGMENT)
        texts.append((row, length, list(range(slot, slot + count))))
        row, slot = row + length, slot + count
    return texts


def by_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], scale: float) -> torch.Tensor:
    """Text by text, so that shapes are the text's own; in fp64 and by one thread on the CPU (ops.rowwise says why)."""
    wide, parts = torch.float32 if q.is_cuda else torch.float64, []
    with one_thread():
        for queries, keys, values in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
            seen = torch.ones(len(queries), len(queries), dtype=torch.bool, device=q.device)
            keys, values = (x.transpose(0, 1).to(wide).contiguous() for x in (keys, values))
            parts.append(masked_attention(queries.to(wide).contiguous(), keys, values, seen, scale).to(q.dtype))
        return torch.cat(parts) if parts else torch.empty_like(q)
