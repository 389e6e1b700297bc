"""Paged attention in plain torch: gather, mask, softmax, in fp64 on the CPU. Its inputs and its tolerance."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch

from pitstop.types import SEGMENT

TOLERANCE = 3e-6
"""|out - exact| ≤ TOLERANCE · max|v| for scores of a few units: fp32 scores err by about 1e-6, which the softmax passes on relatively."""


def masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float, softcap: float = 0.0
) -> torch.Tensor:
    """q [rows, heads, dim], k and v [kv_heads, n, dim], mask [rows, n] (True: seen) → [rows, heads, dim], in q's dtype.

    Rows that see nothing give zeros. What no row sees must be finite here: slice it away, as `paged_attention` does.
    """
    if k.shape[1] == 0:
        return torch.zeros_like(q)
    grouped = q.unflatten(1, (k.shape[0], -1))
    scores = torch.einsum("rhgd,hnd->rhgn", grouped, k) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
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


def append(k: torch.Tensor, v: torch.Tensor, tails: torch.Tensor, items: torch.Tensor) -> None:
    dim = k.shape[2]
    for row, count, start, tail, _, _ in items.tolist():
        at = slice(start % SEGMENT, start % SEGMENT + count)
        tails[tail, :, 0].unflatten(1, (dim, SEGMENT))[:, :, at] = k[row : row + count].permute(1, 2, 0)
        tails[tail, :, 1].unflatten(1, (SEGMENT, dim))[:, at] = v[row : row + count].transpose(0, 1)


def seal_raw(tails: torch.Tensor, pages: torch.Tensor, items: torch.Tensor) -> None:
    for _, _, _, tail, seal, _ in items.tolist():
        if seal >= 0:
            stored = tails[tail].reshape(-1).view(torch.uint8)
            pages[seal, : len(stored)] = stored


def paged_attention(
    q: torch.Tensor,
    tails: torch.Tensor,
    pages: torch.Tensor,
    items: torch.Tensor,
    table: torch.Tensor,
    scale: float,
    softcap: float,
    window: int,
) -> torch.Tensor:
    out = torch.zeros_like(q)
    threads = torch.get_num_threads()
    if not q.is_cuda:
        torch.set_num_threads(1)  # see rowwise
    try:
        for row, count, start, tail, _, offset in items.tolist():
            sealed = table[offset : offset + start // SEGMENT].long()
            keys, values = _gather(tails, pages, tail, sealed, torch.float32 if q.is_cuda else torch.float64)
            step = count if q.is_cuda else 1  # on the CPU row by row: see rowwise
            for first in range(0, count, step):
                rows = slice(row + first, row + first + step)
                positions = torch.arange(start + first, start + first + step, device=q.device)
                low = 0 if window < 0 else max(0, start + first - window + 1)
                high = start + first + step if window else low
                mask = seen_by(positions, torch.arange(low, high, device=q.device), window)
                part = masked_attention(q[rows].to(keys.dtype), keys[:, low:high], values[:, low:high], mask, scale, softcap)
                out[rows] = part.to(q.dtype)
    finally:
        torch.set_num_threads(threads)
    return out


def _gather(
    tails: torch.Tensor, pages: torch.Tensor, tail: int, sealed: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [kv_heads, 128 * segments, dim] of the sealed segments and the open one, whole."""
    _, kv_heads, _, size = tails.shape
    raw = pages[sealed, : kv_heads * 2 * size * tails.itemsize].contiguous().view(tails.dtype).view(-1, kv_heads, 2, size)
    stored = torch.cat([raw, tails[tail][None]]).to(dtype)
    dim = size // SEGMENT
    keys = stored[:, :, 0].unflatten(2, (dim, SEGMENT)).permute(1, 0, 3, 2).flatten(1, 2)
    values = stored[:, :, 1].unflatten(2, (SEGMENT, dim)).transpose(0, 1).flatten(1, 2)
    return keys.contiguous(), values.contiguous()


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
) -> Inputs:
    """Streams of (past, new) tokens: the past is in pages and tails already, the new rows come as items of at most `chunk` rows.

    Every stream draws from its own seed, so that it is the same in any company. All memory that is not written holds NaN.
    """
    size = SEGMENT * dim
    segments = sum((past + new) // SEGMENT + 2 for past, new in streams)
    tails = torch.full((segments, kv_heads, 2, size), torch.nan, dtype=dtype)
    pages = torch.full((segments, kv_heads * 2 * size), torch.nan, dtype=dtype).view(torch.uint8)
    rows, items, table, keys, values, positions, taken, first_row = [], [], [], [], [], [], 0, 0
    for stream, (past, new) in enumerate(streams):
        generator = torch.Generator().manual_seed(seed * 1000 + stream)
        q = torch.randn(past + new, heads, dim, generator=generator)[past:] * 3
        k, v = (torch.randn(past + new, kv_heads, dim, generator=generator) for _ in range(2))
        own = list(range(taken, taken + (past + new) // SEGMENT + 1))
        taken += len(own)
        cuts = sorted({past, past + new, *range(past + chunk - past % chunk, past + new, chunk), *range(0, past + new, SEGMENT)})
        cuts = [cut for cut in cuts if past <= cut]
        for start, end in pairwise(cuts):
            slot = own[start // SEGMENT]
            seal = slot if end % SEGMENT == 0 else -1
            items.append((first_row + start - past, end - start, start, slot, seal, len(table)))
        before = [(i, min(SEGMENT, past - i), i, own[i // SEGMENT], -1, 0) for i in range(0, past, SEGMENT)]
        append(k[:past], v[:past], tails, torch.tensor(before, dtype=torch.int32).view(-1, 6))
        done = [(0, 0, 0, slot, slot, 0) for slot in own[: past // SEGMENT]]
        seal_raw(tails, pages, torch.tensor(done, dtype=torch.int32).view(-1, 6))
        tails[own[: past // SEGMENT]] = torch.nan
        table += own
        rows.append((q, k[past:], v[past:]))
        keys.append(k.to(dtype).float().transpose(0, 1))
        values.append(v.to(dtype).float().transpose(0, 1))
        positions.append(range(past, past + new))
        first_row += new
    q, k, v = (torch.cat(parts) for parts in zip(*rows, strict=True))
    indices = torch.tensor(items, dtype=torch.int32).view(-1, 6), torch.tensor(table, dtype=torch.int32)
    return Inputs(q, k, v, tails, pages, *indices, keys, values, positions)
