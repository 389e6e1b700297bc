"""Paged attention in plain torch: gather, mask, softmax, in fp64 on the CPU. Its inputs and its tolerance."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch

from pitstop.ops.attention import planes
from pitstop.ops.attention.layout import RAW16, RAW32, Layout
from pitstop.ops.rowwise import one_thread
from pitstop.types import SEGMENT

TOLERANCE = 3e-6
"""|out - exact| ≤ TOLERANCE · max|v| for scores of a few units: fp32 scores err by about 1e-6, which the softmax passes on relatively."""


def masked_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float = 0.0,
    heat: torch.Tensor | None = None,
    cap_first: bool = False,
) -> torch.Tensor:
    """q [rows, heads, dim], k and v [kv_heads, n, dim], mask [rows, n] (True: seen) → [rows, heads, dim], in q's dtype.

    heat [rows]: factors on scores, after the soft cap if cap_first, else before. Rows that see nothing give zeros. What no row sees must be
    finite here: slice it away, as `paged_attention` does.
    """
    if k.shape[1] == 0:
        return torch.zeros_like(q)
    grouped = q.unflatten(1, (k.shape[0], -1))
    scores = torch.einsum("rhgd,hnd->rhgn", grouped, k) * scale
    factors = torch.ones(1, 1, 1, 1).to(scores) if heat is None else heat[:, None, None, None]
    if not cap_first:
        scores = scores * factors
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if cap_first:
        scores = scores * factors
    seen = mask[:, None, None, :]
    largest = scores.masked_fill(~seen, -torch.inf).amax(dim=-1, keepdim=True)
    weights = torch.where(seen, torch.exp(scores - largest), 0.0)
    total = weights.sum(dim=-1, keepdim=True)
    mixed = torch.einsum("rhgn,hnd->rhgd", weights, v)
    return torch.where(total > 0, mixed / total, 0.0).flatten(1, 2)


def seen_by(positions: torch.Tensor, keys: torch.Tensor, window: int) -> torch.Tensor:
    """[rows, n]: whether the row at positions[row] sees the key at position keys[n]."""
    distance = positions[:, None] - keys[None, :]
    return (distance >= 0) & (distance < window) if window >= 0 else distance >= 0


def temperature(positions: torch.Tensor, length: int) -> torch.Tensor:
    """Of each position, [rows] fp64: log p / log length from `length` on, 1 before, and everywhere for a length of 0."""
    return (positions.double().clamp(min=length).log2() / math.log2(length)) if length else torch.ones_like(positions, dtype=torch.float64)


def append(k: torch.Tensor, v: torch.Tensor, tails: torch.Tensor, items: torch.Tensor) -> None:
    dim = k.shape[2]
    for row, count, start, tail, _, _ in items.tolist():
        at = slice(start % SEGMENT, start % SEGMENT + count)
        tails[tail, :, 0].unflatten(1, (dim, SEGMENT))[:, :, at] = k[row : row + count].permute(1, 2, 0)
        tails[tail, :, 1].unflatten(1, (SEGMENT, dim))[:, at] = v[row : row + count].transpose(0, 1)


def seal(tails: torch.Tensor, pages: torch.Tensor, items: torch.Tensor, table: torch.Tensor, layout: Layout) -> None:
    for _, _, start, tail, page, offset in items.tolist():
        if page >= 0:
            lead = pages[int(table[offset])] if layout.lead and start < SEGMENT else None
            planes.seal(tails[tail], layout, lead, pages[page])


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
) -> torch.Tensor:
    out = torch.zeros_like(q)
    with one_thread():  # see rowwise
        for row, count, start, tail, _, offset in items.tolist():
            sealed = table[offset : offset + start // SEGMENT + layout.lead_pages].tolist() if start >= SEGMENT else []
            keys, values = _gather(tails[tail], [pages[page] for page in sealed], layout, torch.float32 if q.is_cuda else torch.float64)
            step = count if q.is_cuda else 1  # on the CPU row by row: see rowwise
            for first in range(0, count, step):
                rows = slice(row + first, row + first + step)
                positions = torch.arange(start + first, start + first + step, device=q.device)
                low = 0 if window < 0 else max(0, start + first - window + 1)
                high = start + first + step if window else low
                mask = seen_by(positions, torch.arange(low, high, device=q.device), window)
                heat = temperature(positions, temperature_length).to(keys.dtype)
                part = masked_attention(
                    q[rows].to(keys.dtype), keys[:, low:high], values[:, low:high], mask, scale, softcap, heat, cap_first
                )
                out[rows] = part.to(q.dtype)
    return out


def _gather(tail: torch.Tensor, sealed: list[torch.Tensor], layout: Layout, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [kv_heads, 128 * segments, dim] of the sealed segments (lead page first) and the open one, whole."""
    kv_heads, _, size = tail.shape
    dim = size // SEGMENT
    leads, rest = sealed[: layout.lead_pages], sealed[layout.lead_pages :]
    segments = [planes.unseal(layout, leads[0] if leads and not i else None, page, kv_heads, dim) for i, page in enumerate(rest)]
    segments.append((tail[:, 0].reshape(kv_heads, dim, SEGMENT), tail[:, 1].reshape(kv_heads, SEGMENT, dim)))
    keys = torch.cat([keys.to(dtype).transpose(1, 2) for keys, _ in segments], 1)
    return keys.contiguous(), torch.cat([values.to(dtype) for _, values in segments], 1)


class Inputs(NamedTuple):
    """What `make_inputs` gives: the op's arguments before `append`, and the streams' whole keys and values as they will be stored."""

    q: torch.Tensor  # [rows, heads, dim]
    k: torch.Tensor  # [rows, kv_heads, dim]
    v: torch.Tensor
    tails: torch.Tensor
    pages: torch.Tensor
    items: torch.Tensor
    table: torch.Tensor
    keys: list[torch.Tensor]  # per stream, [kv_heads, past + new, dim] fp32
    values: list[torch.Tensor]
    positions: list[range]  # per stream, of its query rows


def make_inputs(
    seed: int,
    streams: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    chunk: int = SEGMENT,
    layout: Layout | None = None,
) -> Inputs:
    """Streams of (past, new) tokens: the past is in pages and tails already, the new rows come as items of at most `chunk` rows.

    The default layout is the raw one of `dtype`.

    Every stream draws from its own seed, so that it is the same in any company. All memory that is not written holds NaN.
    """
    size = SEGMENT * dim
    segments = sum((past + new) // SEGMENT + 2 for past, new in streams)
    tails = torch.full((segments, kv_heads, 2, size), torch.nan, dtype=dtype)
    layout = layout or (RAW16 if dtype is torch.float16 else RAW32)
    leads = len(streams) * layout.lead_pages  # after the others
    pages = torch.full((segments + leads, layout.page_bytes(kv_heads, dim)), 255, dtype=torch.uint8)
    rows, items, table, keys, values, positions, taken, first_row = [], [], [], [], [], [], 0, 0
    for stream, (past, new) in enumerate(streams):
        generator = torch.Generator().manual_seed(seed * 1000 + stream)
        q = torch.randn(past + new, heads, dim, generator=generator)[past:] * 3
        k, v = (torch.randn(past + new, kv_heads, dim, generator=generator) for _ in range(2))
        own = list(range(taken, taken + (past + new) // SEGMENT + 1))
        own_pages = [segments + stream][: layout.lead_pages] + own
        taken += len(own)
        cuts = sorted({past, past + new, *range(past + chunk - past % chunk, past + new, chunk), *range(0, past + new, SEGMENT)})
        cuts = [cut for cut in cuts if past <= cut]
        for start, end in pairwise(cuts):
            slot = own[start // SEGMENT]
            page = slot if end % SEGMENT == 0 else -1
            items.append((first_row + start - past, end - start, start, slot, page, len(table)))
        before = [(i, min(SEGMENT, past - i), i, own[i // SEGMENT], -1, 0) for i in range(0, past, SEGMENT)]
        append(k[:past], v[:past], tails, torch.tensor(before, dtype=torch.int32).view(-1, 6))
        done = [(0, 0, i * SEGMENT, slot, slot, 0) for i, slot in enumerate(own[: past // SEGMENT])]
        seal(tails, pages, *(torch.tensor(ints, dtype=torch.int32) for ints in (done, own_pages)), layout)
        tails[own[: past // SEGMENT]] = torch.nan
        table += own_pages
        rows.append((q, k[past:], v[past:]))
        keys.append(k.to(dtype).float().transpose(0, 1))
        values.append(v.to(dtype).float().transpose(0, 1))
        positions.append(range(past, past + new))
        first_row += new
    q, k, v = (torch.cat(parts) for parts in zip(*rows, strict=True))
    indices = torch.tensor(items, dtype=torch.int32).view(-1, 6), torch.tensor(table, dtype=torch.int32)
    return Inputs(q, k, v, tails, pages, *indices, keys, values, positions)
