"""The choices for GPUs, in Triton: a logit and its id are one integer, and the largest are kept, in whatever order they are compared."""

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


@triton.jit(do_not_specialize=["row", "k"])
def largest(
    logits_at, keys_at, parts_at, ids_at, values_at, row, k,
    COUNT: tl.constexpr, COLUMNS: tl.constexpr, KEPT: tl.constexpr, UNIT: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles of COLUMNS of the row's COUNT logits, or keys unless FIRST): the KEPT largest keys of each tile, in order.

    Rows of logits lie row · UNIT numbers apart. LAST: there is one tile; the first k keys become ids, and logits for VALUES.
    """
    line, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits_at += line * (row * UNIT)
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    if FIRST:
        keys = _keys(tl.load(logits_at + column, mask=column < COUNT, other=0.0), column)
    else:
        keys = tl.load(keys_at + line * COUNT + column, mask=column < COUNT, other=0)
    keys = tl.where(column < COUNT, keys, -(2**63))
    place = tl.arange(0, KEPT)
    if KEPT == 1:
        keys = tl.max(keys, 0, keep_dims=True)
    else:
        keys = tl.topk(keys, KEPT)
    if LAST:
        ids = (keys ^ LOW) & LOW
        tl.store(ids_at + line * k + place, ids, mask=place < k)
        if VALUES:
            tl.store(values_at + line * k + place, tl.load(logits_at + ids, mask=place < k, other=0.0), mask=place < k)
    else:
        tl.store(parts_at + (line * tl.num_programs(1) + part) * KEPT + place, keys)
