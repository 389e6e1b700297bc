"""The norms for GPUs, in Triton.

Sums are taken over a tile of a row's width; in which order, the compiler decides for the tile, which is one for each width (row_tiles.py).
Roots and quotients are rounded as IEEE 754 has it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["x_row", "y_row", "rows", "heads"])
def normalise(
    x_at, y_at, weight_at, bias_at, total_at, out_at, x_row, y_row, rows, heads, eps,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, UNIT: tl.constexpr, ADD: tl.constexpr, CENTRE: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of ROWS rows). A row is a head of x [rows / heads, heads, WIDTH], whose rows lie x_row · UNIT numbers apart.

    ADD: y is added first, and the sum stored. CENTRE: without the mean, and with a bias.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    here = (row < rows)[:, None] & (column < WIDTH)[None, :]
    outer, inner = (row // heads).to(tl.int64), row % heads * WIDTH
    to = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    x = tl.load(x_at + (outer * (x_row * UNIT) + inner)[:, None] + column[None, :], mask=here, other=0.0)
    if ADD:
        x += tl.load(y_at + (outer * (y_row * UNIT) + inner)[:, None] + column[None, :], mask=here, other=0.0)
        tl.store(total_at + to, x, mask=here)
    count = tl.full([ROWS], WIDTH, tl.float32)
    if CENTRE:
        x = tl.where(here, x - tl.div_rn(tl.sum(x, 1), count)[:, None], 0.0)
    root = tl.sqrt_rn(tl.div_rn(tl.sum(x * x, 1), count) + eps)
    factor = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), root)
    weight = tl.load(weight_at + column, mask=column < WIDTH, other=0.0)
    x = x * factor[:, None] * weight[None, :]
    if CENTRE:
        x += tl.load(bias_at + column, mask=column < WIDTH, other=0.0)[None, :]
    tl.store(out_at + to, x, mask=here)
