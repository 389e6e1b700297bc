"""Routing and grouped experts for GPUs, in Triton: see triton.py for the order in which they run. Nothing is read back.

A choice is a row's rank-th expert; choices are numbered row · top_k + rank, and what is computed for a choice lies at its number.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pitstop.ops.linear.triton_kernels import multiply


@triton.jit
def route(logits, ids, weights, stride, EXPERTS: tl.constexpr, E: tl.constexpr, TOP: tl.constexpr, RENORMALISE: tl.constexpr):
    """Grid (rows). A row's TOP largest of EXPERTS logits, of equals the lower number, NaN above all; their softmax in fp64.

    E: EXPERTS as a power of two. An expert's place is how many come before it.
    """
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, E)
    there = expert < EXPERTS
    logit = tl.load(logits + row * stride + expert, mask=there, other=float("-inf")).to(tl.float64)
    key = tl.where(logit == logit, logit, float("inf"))
    first = (key[None, :] > key[:, None]) | ((key[None, :] == key[:, None]) & (expert[None, :] < expert[:, None]))
    place = tl.sum((first & there[None, :]).to(tl.int32), 1)
    chosen = there & (place < TOP)
    share = tl.exp(logit - tl.max(key, 0))
    share = share / tl.sum(tl.where(chosen if RENORMALISE else there, share, 0.0), 0)
    tl.store(ids + row * TOP + place, expert.to(tl.int64), mask=chosen)
    tl.store(weights + row * TOP + place, share.to(tl.float32), mask=chosen)


@triton.jit
def gather(ids, order, counts, choices, CHUNK: tl.constexpr):
    """Grid (experts). Leaves an expert's choices, ascending, in its stretch of `order`, and how many there are in `counts`."""
    expert = tl.program_id(0)
    at = tl.arange(0, CHUNK)
    before = tl.zeros([CHUNK], tl.int32)
    for start in range(0, choices, CHUNK):
        before += (tl.load(ids + start + at, mask=start + at < choices, other=1 << 30) < expert).to(tl.int32)
    first = tl.sum(before, 0)
    end = first
    for start in range(0, choices, CHUNK):
        mine = (tl.load(ids + start + at, mask=start + at < choices, other=1 << 30) == expert).to(tl.int32)
        tl.store(order + end + tl.cumsum(mine, 0) - 1, start + at, mask=mine > 0)
        end += tl.sum(mine, 0)
    tl.store(counts + expert, end - first)


@triton.jit
def cut(counts, tiles, places, EXPERTS: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr):
    """Grid (places / CHUNK). Tiles of up to COLUMNS choices of one expert: (expert, first in `order`, choices), 0 choices where none is
    left."""
    expert = tl.arange(0, E)
    count = tl.load(counts + expert, mask=expert < EXPERTS, other=0)
    needed = (count + COLUMNS - 1) // COLUMNS
    ends = tl.cumsum(needed, 0)
    firsts = tl.cumsum(count, 0) - count
    tile = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    owner = tl.sum((ends[None, :] <= tile[:, None]).to(tl.int32), 1)
    mine = (expert[None, :] == owner[:, None]).to(tl.int32)
    within = (tile - tl.sum(mine * (ends - needed)[None, :], 1)) * COLUMNS
    left = tl.sum(mine * count[None, :], 1) - within
    at = tiles + tile * 4
    here = tile < places
    tl.store(at, tl.minimum(owner, EXPERTS - 1), mask=here)
    tl.store(at + 1, tl.sum(mine * firsts[None, :], 1) + within, mask=here)
    tl.store(at + 2, tl.maximum(tl.minimum(left, COLUMNS), 0), mask=here)


@triton.jit
def product(
    x_at, data, data_offsets, scales_at, scale_offsets, out_at, sums, arrived, tiles, order,
    outs, depth, x_stride, out_stride, blocks, per_part, parts, per_block, per_row,
    KIND: tl.constexpr, STEP: tl.constexpr, WORDS: tl.constexpr, PANELS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    READY: tl.constexpr, SHARED: tl.constexpr, PARTED: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of outputs, tiles of choices, blocks that share a tile): each choice's expert times x [choice // per_row].

    Offsets: of each expert's words and scales from the first one's, in elements.
    """
    at = tiles + tl.program_id(1) * 4
    expert, first, count = tl.load(at), tl.load(at + 1), tl.load(at + 2)
    column = tl.arange(0, COLUMNS)
    if count > 0:
        here = column < count
        choice = tl.load(order + first + column, mask=here, other=0).to(tl.int64)
        words = data + tl.multiple_of(tl.load(data_offsets + expert), 16)
        scales = scales_at + tl.load(scale_offsets + expert)
        multiply(
            x_at + choice // per_row * x_stride, here, words, scales, scales, out_at + choice * out_stride, sums, arrived,
            outs, depth, blocks, per_part, parts, per_block,
            KIND, STEP, WORDS, PANELS, COLUMNS, STAGES, READY, SHARED, PARTED, False,
        )  # fmt: skip


@triton.jit
def combine(parts, weights, out, width, TOP: tl.constexpr, CHUNK: tl.constexpr):
    """Grid (rows, width / CHUNK): Σ weight · part over a row's choices, in their order."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    here = column < width
    total = tl.load(parts + row * TOP * width + column, mask=here, other=0.0) * tl.load(weights + row * TOP)
    for rank in range(1, TOP):
        total += tl.load(parts + (row * TOP + rank) * width + column, mask=here, other=0.0) * tl.load(weights + row * TOP + rank)
    tl.store(out + row * width + column, total, mask=here)
