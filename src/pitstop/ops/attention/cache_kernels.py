"""Appending to tails and sealing them for GPUs, in Triton. What is stored is planes.py's to the byte, but for which NaN stands for NaN."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["k_row", "v_row", "kv_heads"])
def append(
    k_at, v_at, tails, items, k_row, v_row, kv_heads,
    DIM: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (items, KV heads, 128 / TOKENS). Rows of k and v lie k_row · UNIT and v_row · UNIT numbers apart. An item of no rows does
    nothing."""
    items += tl.program_id(0) * 6
    head = tl.program_id(1)
    done = tl.program_id(2) * TOKENS
    row, count, start, tail = tl.load(items), tl.load(items + 1), tl.load(items + 2), tl.load(items + 3)
    if done < count:
        token = done + tl.arange(0, TOKENS)
        d = tl.arange(0, D)
        here = (token < count)[:, None] & (d < DIM)[None, :]
        rows, at = (row + token).to(tl.int64)[:, None], head * DIM + d[None, :]
        k = tl.load(k_at + rows * (k_row * UNIT) + at, mask=here, other=0.0).to(tl.float16)
        v = tl.load(v_at + rows * (v_row * UNIT) + at, mask=here, other=0.0).to(tl.float16)
        tails += (tail.to(tl.int64) * kv_heads + head) * (2 * 128 * DIM)
        place = (start % 128 + token)[:, None]
        tl.store(tails + d[None, :] * 128 + place, k, mask=here)
        tl.store(tails + 128 * DIM + place * DIM + d[None, :], v, mask=here)


@triton.jit
def _ends(x, here, axis: tl.constexpr):
    """Least and largest along an axis, NaN where one is."""
    broken = tl.max((here & (x != x)).to(tl.int32), axis) > 0
    least = tl.min(tl.where(here, x, float("inf")), axis)
    most = tl.max(tl.where(here, x, float("-inf")), axis)
    return tl.where(broken, float("nan"), least), tl.where(broken, float("nan"), most)


@triton.jit
def _all_ends(plane, ROWS: tl.constexpr, LENGTH: tl.constexpr, WIDE: tl.constexpr):
    """Least and largest of a whole plane [ROWS, LENGTH], each of shape [1]."""
    column = tl.arange(0, WIDE)
    low, high = tl.full([1], float("inf"), tl.float32), tl.full([1], float("-inf"), tl.float32)
    for first in range(0, ROWS, 32):
        row = first + tl.arange(0, 32)
        here = (row < ROWS)[:, None] & (column < LENGTH)[None, :]
        x = tl.load(plane + row[:, None] * LENGTH + column[None, :], mask=here, other=0.0).to(tl.float32)
        least, most = _ends(x, here, 1)
        broken = tl.max((least != least).to(tl.int32), 0, keep_dims=True) > 0
        low = tl.where(broken, float("nan"), tl.minimum(low, tl.min(least, 0, keep_dims=True), propagate_nan=tl.PropagateNan.ALL))
        high = tl.where(broken, float("nan"), tl.maximum(high, tl.max(most, 0, keep_dims=True), propagate_nan=tl.PropagateNan.ALL))
    return low, high


@triton.jit
def _encode(
    plane, pages8, pages16, at, part,
    ROWS: tl.constexpr, LENGTH: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, BITS: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    """Part of a plane [ROWS, LENGTH] of a tail, which is stored `at` 16-bit units into pages: TALL rows of it and WIDE columns.

    ALONG: ranges belong to rows (0), to columns (1) or to the whole (2); those belong to the part, too.
    """
    row = tl.arange(0, TALL) + (0 if ALONG == 1 else part * TALL)
    column = tl.arange(0, WIDE) + (part * WIDE if ALONG == 1 else 0)
    here = (row < ROWS)[:, None] & (column < LENGTH)[None, :]
    x = tl.load(plane + row[:, None] * LENGTH + column[None, :], mask=here, other=0.0)
    if BITS == 16:
        tl.store(pages16 + at + row[:, None] * LENGTH + column[None, :], x, mask=here)
    else:
        x = x.to(tl.float32)
        if ALONG == 2:
            least, most = _all_ends(plane, ROWS, LENGTH, WIDE)
        else:
            least, most = _ends(x, here, 1 - ALONG)
        least, most = least + 0.0, most + 0.0  # of zeros of either sign, +0
        levels: tl.constexpr = 2**BITS - 1
        zero = least.to(tl.float16)
        scale = tl.div_rn(most - least, tl.full(least.shape, levels, tl.float32)).to(tl.float16)
        inverse = tl.div_rn(tl.full(least.shape, 1.0, tl.float32), scale.to(tl.float32))
        inverse = tl.where(scale.to(tl.float32) > 0.0, inverse, 0.0)
        axis: tl.constexpr = 0 if ALONG == 1 else 1
        code = (x - tl.expand_dims(zero.to(tl.float32), axis)) * tl.expand_dims(inverse, axis)
        code = tl.minimum(tl.maximum(code, 0.0), levels)  # NaN becomes 0
        code = ((code + 8388608.0).to(tl.int32, bitcast=True) & 255).to(tl.uint8)  # the nearest integer, of two the even one
        if BITS == 8:
            tl.store(pages8 + at * 2 + row[:, None] * LENGTH + column[None, :], code, mask=here)
        else:
            low, high = tl.split(code.reshape(TALL, WIDE // 32, 2, 16).permute(0, 1, 3, 2).reshape(TALL, WIDE // 2, 2))
            byte = tl.arange(0, WIDE // 2) + (part * (WIDE // 2) if ALONG == 1 else 0)
            there = (row < ROWS)[:, None] & (byte < LENGTH // 2)[None, :]
            tl.store(pages8 + at * 2 + row[:, None] * (LENGTH // 2) + byte[None, :], low | (high << 4), mask=there)
        ranges = pages16 + at + ROWS * LENGTH * BITS // 16
        if ALONG == 2:
            if part == 0:
                half = tl.arange(0, 8)  # what follows is padding
                tl.store(ranges + half, tl.where(half == 0, scale, tl.where(half == 1, zero, 0.0)))
        elif ALONG == 0:
            tl.store(ranges + row, scale, mask=row < ROWS)
            tl.store(ranges + ROWS + row, zero, mask=row < ROWS)
        else:
            tl.store(ranges + column, scale, mask=column < LENGTH)
            tl.store(ranges + LENGTH + column, zero, mask=column < LENGTH)


@triton.jit
def _seal_plane(
    plane, pages8, pages16, at, lead_at, start, part,
    ROWS: tl.constexpr, LENGTH: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    BITS: tl.constexpr, ALONG: tl.constexpr, LEAD: tl.constexpr,
):  # fmt: skip
    """A part of a plane, which goes to lead_at with LEAD bits where it is a stream's first and LEAD is not 0, else to `at`."""
    at, lead_at = tl.multiple_of(at, 8), tl.multiple_of(lead_at, 8)
    if LEAD:
        if start < 128:
            _encode(plane, pages8, pages16, lead_at, part, ROWS, LENGTH, TALL, WIDE, LEAD, ALONG)
        else:
            _encode(plane, pages8, pages16, at, part, ROWS, LENGTH, TALL, WIDE, BITS, ALONG)
    else:
        _encode(plane, pages8, pages16, at, part, ROWS, LENGTH, TALL, WIDE, BITS, ALONG)


@triton.jit(do_not_specialize=["page_eighths", "kv_heads"])
def seal(
    tails, pages8, pages16, items, table, page_eighths, kv_heads,
    DIM: tl.constexpr, LEAD: tl.constexpr,
    KEY_BITS: tl.constexpr, KEY_ALONG: tl.constexpr, KEY_HALVES: tl.constexpr, KEY_LEAD_HALVES: tl.constexpr,
    KEY_TALL: tl.constexpr, KEY_WIDE: tl.constexpr, KEY_PARTS: tl.constexpr,
    VALUE_BITS: tl.constexpr, VALUE_ALONG: tl.constexpr, VALUE_HALVES: tl.constexpr, VALUE_LEAD_HALVES: tl.constexpr,
    VALUE_TALL: tl.constexpr, VALUE_WIDE: tl.constexpr,
):  # fmt: skip
    """Grid (items, KV heads, parts of the keys' plane, then of the values'). A page is 8 · page_eighths 16-bit units long. An item whose
    page is below 0 does nothing."""
    items += tl.program_id(0) * 6
    head, part = tl.program_id(1), tl.program_id(2)
    start, tail, page, offset = tl.load(items + 2), tl.load(items + 3), tl.load(items + 4), tl.load(items + 5)
    if page >= 0:
        lead_page = page
        if LEAD:
            lead_page = tl.load(table + offset)
        tails += (tail.to(tl.int64) * kv_heads + head) * (2 * 128 * DIM)
        at = page.to(tl.int64) * (page_eighths * 8)
        here = at + head * (KEY_HALVES + VALUE_HALVES)
        if part < KEY_PARTS:
            lead = lead_page.to(tl.int64) * (page_eighths * 8) + head * KEY_LEAD_HALVES
            _seal_plane(
                tails, pages8, pages16, here, lead, start, part, DIM, 128, KEY_TALL, KEY_WIDE, KEY_BITS, KEY_ALONG, LEAD
            )  # fmt: skip
        else:
            _seal_plane(
                tails + 128 * DIM, pages8, pages16, here + KEY_HALVES, at + head * VALUE_LEAD_HALVES, start, part - KEY_PARTS,
                128, DIM, VALUE_TALL, VALUE_WIDE, VALUE_BITS, VALUE_ALONG, LEAD,
            )  # fmt: skip
