"""Paged attention for GPUs, in Triton: see triton.py for what it takes, plan.py for how it is launched.

A tile has tokens as its rows and query vectors (some rows times the heads that share a KV head) as its columns, so that a decode step
fills the tensor cores' tiles as a prefill does: scores are K·qᵀ [128, columns], outputs Vᵀ·p [head_dim, columns].

The arithmetic of a row is fixed, whatever the launch looks like. Of each segment by itself: m its largest score, l = Σ exp2(s - m),
o = Σ exp2(s - m)·v. The segments of a group (GROUP of them, counted from the stream's start) are merged in ascending order, then the groups
(Milakov and Gimelshein 2018). Where blocks share a row they meet between two merges, and `merge` goes on with the same operations. The
compiler fuses no multiply-adds (triton.options), the kernels name theirs. Merging into nothing is exact: the first segment stays as it is.
"""

# ruff: noqa: E741 (l is the sum of weights, as in the literature)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _grid(fast, slow, step: tl.constexpr, TURN: tl.constexpr):
    """Offsets fast + slow · step as [fast, slow], or as [slow, fast] for TURN."""
    if TURN:
        return slow[:, None] * step + fast[None, :]
    else:  # a kernel's function has one type
        return fast[:, None] + slow[None, :] * step


@triton.jit
def _both(fast, slow, TURN: tl.constexpr):
    """Where both are true, of the same shape."""
    if TURN:
        return slow[:, None] & fast[None, :]
    else:
        return fast[:, None] & slow[None, :]


@triton.jit
def _codes(
    at, LINES: tl.constexpr, LENGTH: tl.constexpr, length: tl.constexpr, BITS: tl.constexpr, seen, TURN: tl.constexpr
):  # fmt: skip
    """Codes of a plane as fp16 [LENGTH, LINES], turned for TURN, of which [length, lines] are stored, as layout.py packs them; `seen`
    [LINES]: which to read.

    1024 + c is fp16 with c in its lowest bits: a conversion without converting.
    """
    line = tl.arange(0, LINES)
    if BITS == 8:
        column = tl.arange(0, LENGTH)
        codes = tl.load(at + _grid(column, line, length, TURN), mask=_both(column < length, seen, TURN), other=0)
    else:
        byte = tl.arange(0, LENGTH // 2)
        both = tl.load(at + _grid(byte, line, length // 2, TURN), mask=_both(byte < length // 2, seen, TURN), other=0)
        halves = tl.join(both & 15, both >> 4)
        if TURN:
            codes = halves.reshape(LINES, LENGTH // 32, 16, 2).permute(0, 1, 3, 2).reshape(LINES, LENGTH)
        else:
            codes = halves.reshape(LENGTH // 32, 16, LINES, 2).permute(0, 3, 1, 2).reshape(LENGTH, LINES)
    return (codes.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - 1024.0


@triton.jit
def _plane(
    pages8, pages16, at, LINES: tl.constexpr, lines: tl.constexpr, LENGTH: tl.constexpr, length: tl.constexpr,
    BITS: tl.constexpr, ALONG: tl.constexpr, TURN: tl.constexpr, CUT: tl.constexpr, first, last,
):  # fmt: skip
    """The plane that starts `at` 16-bit units into pages, as fp16 [LENGTH, LINES]: its lines side by side. What is not stored is 0.

    ALONG: ranges belong to lines (0), to columns (1) or to the whole (2). CUT: lines before first and after last are 0, whatever they hold.
    TURN: codes are made numbers before they are turned.
    """
    line = tl.arange(0, LINES)
    column = tl.arange(0, LENGTH)
    seen = line < lines
    if CUT:
        seen = seen & (line >= first) & (line <= last)
    if BITS == 16:
        return tl.load(pages16 + at + _grid(column, line, length, False), mask=_both(column < length, seen, False), other=0.0)
    codes = _codes(pages8 + at * 2, LINES, LENGTH, length, BITS, seen, TURN)
    scales = pages16 + at + lines * length * BITS // 16
    if ALONG == 2:
        scale = tl.load(scales)
        zero = tl.load(scales + 1)
    else:
        if ALONG == 0:
            scale = tl.load(scales + line, mask=seen, other=0.0)
            zero = tl.load(scales + lines + line, mask=seen, other=0.0)
        else:
            scale = tl.load(scales + column, mask=column < length, other=0.0)
            zero = tl.load(scales + length + column, mask=column < length, other=0.0)
        axis: tl.constexpr = 1 if (ALONG == 0) == TURN else 0
        scale, zero = tl.expand_dims(scale, axis), tl.expand_dims(zero, axis)
    numbers = tl.fma(codes, tl.broadcast_to(scale, codes.shape), tl.broadcast_to(zero, codes.shape))
    if TURN:
        return tl.trans(numbers)
    else:
        return numbers


@triton.jit
def _merge(m, l, o, m1, l1, o1):
    """Segments or groups (m, l, o) and the later ones (m1, l1, o1), m and l [columns], o [head_dim, columns]."""
    top = tl.maximum(m, m1)
    base = tl.where(top == float("-inf"), 0.0, top)
    old, new = tl.exp2(m - base), tl.exp2(m1 - base)
    return top, tl.fma(l, old, l1 * new), tl.fma(o, tl.broadcast_to(old[None, :], o.shape), o1 * new[None, :])


@triton.jit
def _weigh(
    k, q, positions, heat, segment, scale, cap_rate, cap, window,
    OPEN: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, HEAT: tl.constexpr,
):  # fmt: skip
    """Of a segment's keys [128, head_dim]: largest scores, sums of weights [columns], weights [128, columns] fp16. OPEN: the rows' own."""
    scores = tl.dot(k, q) * scale
    if HEAT == 1:
        scores = scores * heat[None, :]
    if CAP:
        scores = cap - 2.0 * cap / (tl.exp2(scores * cap_rate) + 1.0)
    if HEAT == 2:
        scores = scores * heat[None, :]
    if OPEN or WINDOW:
        tokens = segment * 128 + tl.arange(0, 128)
        seen = tokens[:, None] <= positions[None, :]
        if WINDOW:
            seen = seen & (tokens[:, None] > positions[None, :] - window)
        scores = tl.where(seen, scores, float("-inf"))
    top = tl.max(scores, 0)
    weights = tl.exp2(scores - tl.where(top == float("-inf"), 0.0, top)[None, :])
    return top, tl.sum(weights, 0), weights.to(tl.float16)


@triton.jit
def _put(parts, sums, part, m, l, o, here, DIM: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr):
    """Leave (m, l, o) for `merge`."""
    column = tl.arange(0, COLUMNS)
    d = tl.arange(0, D)
    tl.store(sums + part * 2 + column, m, mask=here)
    tl.store(sums + part * 2 + COLUMNS + column, l, mask=here)
    tl.store(parts + (part + column)[None, :] * DIM + d[:, None], o, mask=here[None, :] & (d < DIM)[:, None])


@triton.jit
def attend(
    q_at, tails, pages8, pages16, table, work, out_at, parts, sums,
    q_stride, page_halves, kv_heads, scale, cap_rate, cap, window, heat_from, heat_rate,
    SHARE: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, GROUP: tl.constexpr,
    KEY_BITS: tl.constexpr, KEY_ALONG: tl.constexpr, KEY_HALVES: tl.constexpr,
    VALUE_BITS: tl.constexpr, VALUE_ALONG: tl.constexpr, VALUE_HALVES: tl.constexpr,
    LEAD: tl.constexpr, LEAD_KEY_HALVES: tl.constexpr, LEAD_VALUE_HALVES: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, HEAT: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Grid (units of work, KV heads). A unit is a row of `work` (plan.Unit): some query rows of one segment, and some of what they see."""
    work += tl.program_id(0) * 8
    head = tl.program_id(1)
    row, count, start, tail = tl.load(work), tl.load(work + 1), tl.load(work + 2), tl.load(work + 3)
    offset, first, end, slot = tl.load(work + 4), tl.load(work + 5), tl.load(work + 6), tl.load(work + 7)
    own = start // 128
    column = tl.arange(0, COLUMNS)
    d = tl.arange(0, D)
    here = column // SHARE < count
    positions = start + tl.minimum(column // SHARE, count - 1)
    vectors = (row + column // SHARE).to(tl.int64) * q_stride + (head * SHARE + column % SHARE) * DIM
    q = tl.trans(tl.load(q_at + vectors[:, None] + d[None, :], mask=here[:, None] & (d < DIM)[None, :], other=0.0).to(tl.float16))
    heat = tl.zeros([COLUMNS], tl.float32)
    if HEAT:
        heat = tl.where(positions > heat_from, tl.log2(tl.maximum(positions, 1).to(tl.float32)) * heat_rate, 1.0)

    least = tl.maximum(start - window + 1, 0)  # the first token that any of these rows sees, where there is a window
    nothing = tl.full([COLUMNS], float("-inf"), tl.float32)
    m_all, l_all, o_all = nothing, tl.zeros([COLUMNS], tl.float32), tl.zeros([D, COLUMNS], tl.float32)
    m, l, o = nothing, tl.zeros([COLUMNS], tl.float32), tl.zeros([D, COLUMNS], tl.float32)
    if LEAD:  # noqa: SIM102 (a constant, decided when it is compiled)
        if (first == 0) & (own > 0):
            lead = tl.load(table + offset).to(tl.int64) * page_halves + head * LEAD_KEY_HALVES
            page = tl.load(table + offset + 1).to(tl.int64) * page_halves + head * LEAD_VALUE_HALVES
            k = _plane(pages8, pages16, tl.multiple_of(lead, 8), D, DIM, 128, 128, LEAD, KEY_ALONG, TURN, False, 0, 127)
            m1, l1, p = _weigh(k, q, positions, heat, 0, scale, cap_rate, cap, window, False, WINDOW, CAP, HEAT)
            tl.debug_barrier()  # else keys and values wait in registers together
            v = _plane(pages8, pages16, tl.multiple_of(page, 8), 128, 128, D, DIM, LEAD, VALUE_ALONG, TURN, WINDOW, least, 127)
            m, l, o = _merge(m, l, o, m1, l1, tl.dot(v, p))
    for segment in tl.range(tl.maximum(first, 1) if LEAD else first, tl.minimum(end, own), num_stages=STAGES):
        page = tl.load(table + offset + (1 if LEAD else 0) + segment).to(tl.int64) * page_halves
        at = tl.multiple_of(page + head * (KEY_HALVES + VALUE_HALVES), 8)
        k = _plane(pages8, pages16, at, D, DIM, 128, 128, KEY_BITS, KEY_ALONG, TURN, False, 0, 127)
        m1, l1, p = _weigh(k, q, positions, heat, segment, scale, cap_rate, cap, window, False, WINDOW, CAP, HEAT)
        if STAGES == 1:
            tl.debug_barrier()
        low = least - segment * 128
        v = _plane(pages8, pages16, at + KEY_HALVES, 128, 128, D, DIM, VALUE_BITS, VALUE_ALONG, TURN, WINDOW, low, 127)
        m, l, o = _merge(m, l, o, m1, l1, tl.dot(v, p))
        if segment % GROUP == GROUP - 1:
            if slot < 0:
                m_all, l_all, o_all = _merge(m_all, l_all, o_all, m, l, o)
            else:
                part = ((slot + segment // GROUP - first // GROUP).to(tl.int64) * kv_heads + head) * COLUMNS
                _put(parts, sums, part, m, l, o, here, DIM, D, COLUMNS)
            m, l, o = nothing, tl.zeros([COLUMNS], tl.float32), tl.zeros([D, COLUMNS], tl.float32)
    if end > own:
        at = tl.multiple_of((tail.to(tl.int64) * kv_heads + head) * (2 * 128 * DIM), 16)
        k = _plane(pages8, tails, at, D, DIM, 128, 128, 16, 2, False, False, 0, 127)
        m1, l1, p = _weigh(k, q, positions, heat, own, scale, cap_rate, cap, window, True, WINDOW, CAP, HEAT)
        tl.debug_barrier()
        low = least - own * 128 if WINDOW else 0
        last = start + count - 1 - own * 128
        v = _plane(pages8, tails, at + 128 * DIM, 128, 128, D, DIM, 16, 2, False, True, low, last)
        m, l, o = _merge(m, l, o, m1, l1, tl.dot(v, p))
    if slot < 0:
        m_all, l_all, o_all = _merge(m_all, l_all, o_all, m, l, o)
    elif (end > own) | (end % GROUP != 0):
        part = ((slot + (end - 1) // GROUP - first // GROUP).to(tl.int64) * kv_heads + head) * COLUMNS
        _put(parts, sums, part, m, l, o, here, DIM, D, COLUMNS)
    if slot < 0:
        o_all = o_all / tl.where(l_all == 0.0, 1.0, l_all)[None, :]
        to = (row + column // SHARE).to(tl.int64) * (kv_heads * SHARE * DIM) + (head * SHARE + column % SHARE) * DIM
        tl.store(out_at + to[None, :] + d[:, None], o_all.to(out_at.dtype.element_ty), mask=here[None, :] & (d < DIM)[:, None])


@triton.jit
def merge(
    merges, parts, sums, out_at, kv_heads,
    SHARE: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, PER_GROUP: tl.constexpr,
):  # fmt: skip
    """Grid (rows whose work was shared, heads): the parts of plan.Merge, merged on in `attend`'s order. PER_GROUP: parts of a group.
    Of a row below 0 nothing is written."""
    merges += tl.program_id(0) * 8
    head = tl.program_id(1)
    row, within, slot, first, end = (
        tl.load(merges), tl.load(merges + 1), tl.load(merges + 2), tl.load(merges + 3), tl.load(merges + 4)
    )  # fmt: skip
    d = tl.arange(0, D)
    one = tl.zeros([1], tl.int32)
    column = one + within * SHARE + head % SHARE
    m_all, l_all, o_all = tl.full([1], float("-inf"), tl.float32), tl.zeros([1], tl.float32), tl.zeros([D, 1], tl.float32)
    for group in range(first // PER_GROUP, (end + PER_GROUP - 1) // PER_GROUP):
        m, l, o = tl.full([1], float("-inf"), tl.float32), tl.zeros([1], tl.float32), tl.zeros([D, 1], tl.float32)
        for part in range(tl.maximum(first, group * PER_GROUP), tl.minimum(end, group * PER_GROUP + PER_GROUP)):
            at = ((slot + part - first).to(tl.int64) * kv_heads + head // SHARE) * COLUMNS
            m1, l1 = tl.load(sums + at * 2 + column), tl.load(sums + at * 2 + COLUMNS + column)
            o1 = tl.load(parts + (at + column)[None, :] * DIM + d[:, None], mask=(d < DIM)[:, None], other=0.0)
            m, l, o = _merge(m, l, o, m1, l1, o1)
        m_all, l_all, o_all = _merge(m_all, l_all, o_all, m, l, o)
    o_all = o_all / tl.where(l_all == 0.0, 1.0, l_all)[None, :]
    to = (row.to(tl.int64) * kv_heads * SHARE + head) * DIM + d[:, None] + one[None, :]
    tl.store(out_at + to, o_all.to(out_at.dtype.element_ty), mask=(d < tl.where(row < 0, 0, DIM))[:, None])
