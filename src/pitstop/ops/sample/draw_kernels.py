"""Draws for GPUs, in Triton, one block a row. A token is one integer, a key: its weight (draws.py), then how far its id is from the last
there could be. So keys are in the order of likelihood, no two are equal, and each filter is a bar below which keys are left out.

No row is sorted. A bar is found by halving; and since the likeliest few nearly always hold all that a filter keeps, their keys are noted
first, and the halving reads them alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pitstop.ops.activation.triton_kernels import exp
from pitstop.ops.sample import draws

ONE, ID_BITS = tl.constexpr(draws.ONE), tl.constexpr(draws.ID_BITS)
LAST_ID = tl.constexpr((1 << draws.ID_BITS) - 1)
ABOVE = tl.constexpr((draws.ONE + 1) << draws.ID_BITS)
"""Every key."""


@triton.jit
def _weights(logits, most, temperature):
    """int64, where `most` is the row's largest logit."""
    shares = exp(tl.div_rn(logits - most, temperature))
    weights = (tl.where(shares == shares, shares, 0.0) * (ONE * 1.0)).to(tl.int64)
    return tl.where((logits == most) | (logits != logits), ONE, weights)


@triton.jit
def _keys(logits_at, tile, most, temperature, VOCAB: tl.constexpr, COLUMNS: tl.constexpr):
    """int64 [COLUMNS]; -1 beyond the row's end."""
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    logits = tl.load(logits_at + column, mask=column < VOCAB, other=0.0)
    keys = (_weights(logits, most, temperature) << ID_BITS) | (column ^ LAST_ID).to(tl.int64)
    return tl.where(column < VOCAB, keys, -1)


@triton.jit
def _weight_from(keys, bar):
    """int64 [COLUMNS]: what weighs each key that is not below the bar."""
    return tl.where(keys >= bar, keys >> ID_BITS, 0)


@triton.jit
def _noted(keys_at, deepest, bar, COLUMNS: tl.constexpr):
    """Of the noted keys, those that are not below the bar: how many, and their weight."""
    number, weight = tl.zeros([COLUMNS], tl.int32), tl.zeros([COLUMNS], tl.int64)
    for depth in range(deepest):
        keys = tl.load(keys_at + depth * COLUMNS + tl.arange(0, COLUMNS))
        number += (keys >= bar).to(tl.int32)
        weight += _weight_from(keys, bar)
    return tl.sum(number, 0), tl.sum(weight, 0)


@triton.jit
def _raised(keys_at, deepest, bar, wanted, BY_WEIGHT: tl.constexpr, COLUMNS: tl.constexpr):
    """The highest bar that leaves `wanted` of the noted keys that are not below this one, in number or in weight, and what it leaves.

    Of the keys between the bar and the lowest that leaves too few, those are halved that there could be, until one is left.
    """
    number, weight = _noted(keys_at, deepest, bar, COLUMNS)
    high, beyond = tl.full([], ABOVE, tl.int64), tl.full([], 0, tl.int32)
    while number - beyond > 1:
        middle = bar + ((high - bar) >> 1)
        number_left, weight_left = _noted(keys_at, deepest, middle, COLUMNS)
        enough = (weight_left if BY_WEIGHT else number_left) >= wanted
        bar, high = tl.where(enough, middle, bar), tl.where(enough, high, middle)
        number, beyond = tl.where(enough, number_left, number), tl.where(enough, beyond, number_left)
        weight = tl.where(enough, weight_left, weight)
    return bar, weight


@triton.jit
def _bar(
    logits_at, keys_at, most, least, temperature, top_k, top_p,
    VOCAB: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Of top_k and top_p. least: a logit, perhaps low enough for what they keep to weigh no less; it is seen whether it is."""
    low = tl.max(_weights(tl.full([1], 1.0, tl.float32) * least, most, temperature), 0) << ID_BITS
    number, weight, total = tl.zeros([COLUMNS], tl.int32), tl.zeros([COLUMNS], tl.int64), tl.zeros([COLUMNS], tl.int64)
    for tile in range(TILES):
        keys = _keys(logits_at, tile, most, temperature, VOCAB, COLUMNS)
        number += (keys >= low).to(tl.int32)
        weight += _weight_from(keys, low)
        total += _weight_from(keys, 0)
    total = tl.sum(total, 0)
    wanted = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)
    low = tl.where(tl.where(top_k > 0, tl.sum(number, 0) >= top_k, tl.sum(weight, 0) >= wanted), low, 0)

    depth = tl.zeros([COLUMNS], tl.int32)  # of what is noted, column by column
    for tile in range(TILES):
        keys = _keys(logits_at, tile, most, temperature, VOCAB, COLUMNS)
        tl.store(keys_at + depth * COLUMNS + tl.arange(0, COLUMNS), keys, mask=keys >= low)
        depth += (keys >= low).to(tl.int32)
    deepest = tl.max(depth, 0)
    for row in range(deepest):
        tl.store(keys_at + row * COLUMNS + tl.arange(0, COLUMNS), tl.full([COLUMNS], -1, tl.int64), mask=row >= depth)
    tl.debug_barrier()  # the block's other threads read it

    bar = tl.full([], 0, tl.int64)
    if top_k > 0:
        bar, total = _raised(keys_at, deepest, bar, top_k, False, COLUMNS)
    if top_p < 1:
        bar, total = _raised(keys_at, deepest, bar, tl.ceil(top_p * total.to(tl.float64)).to(tl.int64), True, COLUMNS)
    return bar


@triton.jit
def _token(
    logits_at, most, bar, temperature, uniform, VOCAB: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, SUMS: tl.constexpr
):  # fmt: skip
    """The first whose running weight, of the keys that are not below the bar, is more than that share of all: its tile, then it."""
    part, sums = tl.arange(0, SUMS), tl.zeros([SUMS], tl.int64)
    for tile in range(TILES):
        keys = _keys(logits_at, tile, most, temperature, VOCAB, COLUMNS)
        sums = tl.where(part == tile, tl.sum(_weight_from(keys, bar), 0), sums)
    target = (uniform * tl.sum(sums, 0).to(tl.float64)).to(tl.int64)
    passed = tl.cumsum(sums, 0) <= target
    tile = tl.sum(passed.to(tl.int32), 0)
    target -= tl.sum(tl.where(passed, sums, 0), 0)
    running = tl.cumsum(_weight_from(_keys(logits_at, tile, most, temperature, VOCAB, COLUMNS), bar), 0)
    return tile * COLUMNS + tl.sum((running <= target).to(tl.int32), 0)


@triton.jit(do_not_specialize=["row"])
def drawn(
    logits_at, draws_at, keys_at, ids_at, row,
    VOCAB: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, SUMS: tl.constexpr,
    GROUPS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows,): the id of each row's token. Rows of logits lie row · UNIT numbers apart, of draws 5 fp64, of keys TILES · COLUMNS."""
    line = tl.program_id(0).to(tl.int64)
    logits_at, keys_at, draws_at = logits_at + line * (row * UNIT), keys_at + line * (TILES * COLUMNS), draws_at + line * 5
    temperature, top_k = tl.load(draws_at).to(tl.float32), tl.load(draws_at + 1).to(tl.int64)
    top_p, least, uniform = tl.load(draws_at + 2), tl.load(draws_at + 3).to(tl.int64), tl.load(draws_at + 4)

    best = tl.full([COLUMNS], float("-inf"), tl.float32)
    for tile in range(TILES):
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        logits = tl.load(logits_at + column, mask=column < VOCAB, other=float("-inf"))
        best = tl.maximum(best, logits, propagate_nan=tl.PropagateNan.ALL)
    most = tl.where(tl.max((best != best).to(tl.int32), 0) > 0, float("nan"), tl.max(best, 0))
    groups = tl.max(tl.reshape(best, [GROUPS, COLUMNS // GROUPS]), 1)

    bar = least << ID_BITS
    top_k = tl.where(top_k < VOCAB, top_k, 0)
    if (top_k > 0) | (top_p < 1):
        filtered = _bar(logits_at, keys_at, most, tl.min(groups, 0), temperature, top_k, top_p, VOCAB, COLUMNS, TILES)
        bar = tl.maximum(bar, filtered)
    tl.store(ids_at + line, _token(logits_at, most, bar, temperature, uniform, VOCAB, COLUMNS, TILES, SUMS))
