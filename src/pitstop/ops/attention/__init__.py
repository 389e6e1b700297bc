"""Attention over a paged KV cache in segments of 128 tokens, and attention of whole texts that is kept nowhere.

The memory (see also types.Codec and types.Piece): `tails` [slots, kv_heads, 2, 128 * head_dim] fp16 or fp32 holds open segments, index 0
the keys transposed ([head_dim, 128]), index 1 the values ([128, head_dim]); `pages` [pages, page_bytes] uint8 holds sealed ones, as the
`Layout` says (layout.py; RAW16 and RAW32 are exactly a tail). `items` int32 [n, 6] has the columns row, count, start, tail, seal, table:
`count` query rows from batch row `row` on, at positions from `start` on, all inside one segment, whose open copy is tail slot `tail` and
whose page-to-be is `seal` (-1: none yet). The stream's pages are `table[table : …]`, `table` int32 [m]: its lead page, if the layout has
one, then one for each sealed segment, those that this call seals included. Items that share a tail slot within one call must be of the
same segment.
"""

from __future__ import annotations

import torch

from pitstop.ops.attention import cache, cpu, full, ref, triton
from pitstop.ops.attention.layout import RAW16, RAW32, Layout, Plane
from pitstop.ops.dispatch import Op

__all__ = ["RAW16", "RAW32", "Layout", "Plane", "append", "full_attention", "paged_attention", "seal"]

_append = Op("append", triton=cache.append, cpu=cpu.append, ref=ref.append)
_seal = Op("seal", triton=cache.seal, cpu=cpu.seal, ref=ref.seal)
_paged_attention = Op("paged_attention", triton=triton.paged_attention, cpu=cpu.paged_attention, ref=ref.paged_attention)
_full_attention = Op("full_attention", cpu=full.by_native, ref=full.by_torch)


def append(k: torch.Tensor, v: torch.Tensor, tails: torch.Tensor, items: torch.Tensor) -> None:
    """Write keys and values [rows, kv_heads, head_dim] fp32 into their items' tails at position % 128, rounded to nearest even.

    An item of no rows does nothing. Native raises ValueError for an item out of range.
    """
    if k.shape != v.shape or k.dim() != 3 or tails.dim() != 4 or tails.shape[1] != k.shape[1] or tails.shape[3] != 128 * k.shape[2]:
        raise ValueError(f"append: k {list(k.shape)}, v {list(v.shape)} and tails {list(tails.shape)} do not fit together")
    _append(k, v, tails, items)


def seal(tails: torch.Tensor, pages: torch.Tensor, items: torch.Tensor, table: torch.Tensor, layout: Layout) -> None:
    """Encode each item's tail into its page, for items with seal ≥ 0 (planes.py has the arithmetic, which native repeats to the bit)."""
    if pages.dim() != 2 or pages.shape[1] < (need := layout.page_bytes(tails.shape[1], tails.shape[3] // 128)):
        raise ValueError(f"seal: pages {list(pages.shape)} are smaller than the {need} bytes of a segment")
    _seal(tails, pages, items, table, layout)


def paged_attention(
    q: torch.Tensor,
    tails: torch.Tensor,
    pages: torch.Tensor,
    items: torch.Tensor,
    table: torch.Tensor,
    layout: Layout,
    scale: float,
    softcap: float = 0.0,
    window: int = -1,
    temperature_length: int = 0,
    cap_first: bool = False,
) -> torch.Tensor:
    """q [rows, heads, head_dim] fp32 → [rows, heads, head_dim] fp32; heads a multiple of kv_heads, which they share in runs.

    The row at position p sees the positions ≤ p, and > p - window when window ≥ 0: earlier segments from their pages, as stored, its
    own from the tail. Softmax of c·tanh(q·k·scale / c), c = softcap, plain q·k·scale for 0. Where p exceeds a temperature_length t > 0,
    scores are multiplied by log p / log t, after the soft cap if cap_first, else before. A row that sees nothing gives zeros, as does a row
    that no item names. Memory outside what a row sees may hold any bits.

    Native: per row, head and segment, scores by a chain of fused multiply-adds over ascending d, values by one over ascending tokens; the
    segments' (largest, total, values) are merged in order, as in Milakov and Gimelshein 2018. Raises ValueError for an item out of range.
    """
    if q.dim() != 3 or tails.dim() != 4 or tails.shape[3] != 128 * q.shape[2] or q.shape[1] % tails.shape[1]:
        raise ValueError(f"paged_attention: q {list(q.shape)} and tails {list(tails.shape)} do not fit together")
    return _paged_attention(q, tails, pages, items, table, layout, scale, softcap, window, temperature_length, cap_first)


def full_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], scale: float) -> torch.Tensor:
    """q, k, v [rows, heads, head_dim] fp32 → [rows, heads, head_dim] fp32: attention of texts whose every row sees all rows of its own.

    lengths: rows of each text, one text after the other; they add up to `rows`. Softmax of q·k·scale. What comes of a text depends on
    its own rows only, to the bit. Native: in segments of 128 keys, as `paged_attention` has it.
    """
    if q.dim() != 3 or not q.shape == k.shape == v.shape or sum(lengths) != len(q) or min(lengths, default=1) < 1:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (q, k, v))
        raise ValueError(f"full_attention: q, k and v must be [rows, heads, head_dim], and lengths add up to rows; got {shapes}, {lengths}")
    return _full_attention(q, k, v, lengths, scale)
