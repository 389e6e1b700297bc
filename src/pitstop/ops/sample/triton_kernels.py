"""The likeliest token for GPUs, in Triton: a logit and its id are one integer, and the largest is kept, in whatever order they are
compared."""

from __future__ import annotations

import triton
import triton.language as tl

LOW = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _keys(logits, column):
    """Integers in the order of what is chosen. The high half is the logit's bits, those below the sign turned over where it is negative,
    so that they compare as the numbers do; the low half is how far the id is from the last there could be. NaN is the largest; adding 0
    leaves one zero."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    bits = tl.where(logits != logits, LOW, bits ^ ((bits >> 31) & LOW))
    return (bits.to(tl.int64) << 32) | (column ^ LOW).to(tl.int64)


@triton.jit(do_not_specialize=["row"])
def largest(
    logits_at, keys_at, found_at, row,
    COUNT: tl.constexpr, COLUMNS: tl.constexpr, UNIT: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles of COLUMNS of the row's COUNT logits, or keys unless FIRST): the largest key of each tile.

    Rows of logits lie row · UNIT numbers apart. LAST: there is one tile, and its key becomes an id.
    """
    line, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    if FIRST:
        keys = _keys(tl.load(logits_at + line * (row * UNIT) + column, mask=column < COUNT, other=0.0), column)
    else:
        keys = tl.load(keys_at + line * COUNT + column, mask=column < COUNT, other=0)
    key = tl.max(tl.where(column < COUNT, keys, -(2**63)), 0)
    if LAST:
        key = (key ^ LOW) & LOW
    tl.store(found_at + line * tl.num_programs(1) + part, key)
