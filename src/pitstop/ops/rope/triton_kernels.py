"""The rotations for GPUs, in Triton: each product, sum and difference rounded once, in the reference's order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """x [ROWS, COLUMNS] → its even and its odd columns."""
    return tl.split(x.reshape(ROWS, COLUMNS // 2, 2))


@triton.jit(do_not_specialize=["x_row", "heads", "context"])
def rotate(
    x_at, positions, cos_at, sin_at, out_at, x_row, heads, context,
    DIM: tl.constexpr, COLUMNS: tl.constexpr, HEADS: tl.constexpr, UNIT: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles of HEADS heads). COLUMNS: a power of two that holds DIM. A position outside the tables gives NaN."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    position = tl.load(positions + row)
    pair = tl.arange(0, COLUMNS // 2)
    angle = position.to(tl.int64) * (DIM // 2) + pair
    known = pair < tl.where((position >= 0) & (position < context), DIM // 2, 0)
    cos = tl.load(cos_at + angle, mask=known, other=float("nan"))[None, :]
    sin = tl.load(sin_at + angle, mask=known, other=float("nan"))[None, :]
    x_at += row * (x_row * UNIT)
    out_at += row * heads * DIM
    if INTERLEAVED:
        column = tl.arange(0, COLUMNS)
        at = head[:, None] * DIM + column[None, :]
        here = (head < heads)[:, None] & (column < DIM)[None, :]
        a, b = _halves(tl.load(x_at + at, mask=here, other=0.0), HEADS, COLUMNS)
        rotated = tl.join(a * cos - b * sin, b * cos + a * sin)
        tl.store(out_at + at, rotated.reshape(HEADS, COLUMNS), mask=here)
    else:
        at = head[:, None] * DIM + pair[None, :]
        here = (head < heads)[:, None] & (pair < DIM // 2)[None, :]
        a, b = tl.load(x_at + at, mask=here, other=0.0), tl.load(x_at + at + DIM // 2, mask=here, other=0.0)
        tl.store(out_at + at, a * cos - b * sin, mask=here)
        tl.store(out_at + at + DIM // 2, b * cos + a * sin, mask=here)


@triton.jit(do_not_specialize=["x_row", "vectors", "heads"])
def hadamard(
    x_at, out_at, x_row, vectors, heads,
    DIM: tl.constexpr, DOUBLINGS: tl.constexpr, VECTORS: tl.constexpr, UNIT: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of VECTORS heads of rows). Every turn takes sums and differences of neighbours and puts them half a vector apart: after
    one, those that were 2 apart are neighbours, and after as many as there are doublings from 1 to DIM all is in its place again."""
    vector = tl.program_id(0) * VECTORS + tl.arange(0, VECTORS)
    column = tl.arange(0, DIM)
    here = (vector < vectors)[:, None] & (column < DIM)[None, :]
    at = (vector // heads).to(tl.int64) * (x_row * UNIT) + vector % heads * DIM
    x = tl.load(x_at + at[:, None] + column[None, :], mask=here, other=0.0)
    for _ in tl.static_range(DOUBLINGS):
        a, b = _halves(x, VECTORS, DIM)
        x = tl.join(a + b, a - b).permute(0, 2, 1).reshape(VECTORS, DIM)
    tl.store(out_at + vector.to(tl.int64)[:, None] * DIM + column[None, :], x * SCALE, mask=here)
