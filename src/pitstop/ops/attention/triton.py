"""Paged attention by Triton kernels (triton_kernels.py), launched as plan.py says.

Products are of fp16 numbers, queries included, and are summed in fp32; ranges make fp16 keys and values of codes. The scores' error is
that of 16-bit keys and queries, the answers' about 1e-3 of the largest value (TOLERANCE).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from pitstop.ops import gpu
from pitstop.ops.attention.layout import Layout, Plane
from pitstop.ops.attention.plan import GROUP, Heads, Plan, Schedule, Span, plan, schedule
from pitstop.ops.dispatch import Declined
from pitstop.types import SEGMENT

TOLERANCE = 4e-3
"""|out - exact| ≤ TOLERANCE · max|v| for scores of a few units: queries, keys, weights and values of 11 bits."""

ALONG = {"keys": {"none": 2, "channel": 0, "token": 1, "segment": 2}, "values": {"none": 2, "token": 0, "channel": 1, "segment": 2}}
"""What ranges belong to: lines of a plane (0), columns (1), the whole (2). Keys lie a channel a line, values a token a line."""


class Scores(NamedTuple):
    """See attention.paged_attention."""

    scale: float
    softcap: float = 0.0
    window: int = -1
    temperature_length: int = 0
    cap_first: bool = False


class Launch(NamedTuple):
    """A plan and its work on the device, for all layers of a step that have the same window."""

    plan: Plan
    work: torch.Tensor  # int32 [units, 8]
    merges: torch.Tensor  # int32 [rows, 8]
    slots: int
    per_group: int


def constants(plan: Plan, heads: Heads, layout: Layout, scores: Scores) -> dict[str, int | bool]:
    """The constants that `attend` is compiled with."""
    along = {name: ALONG[name][getattr(layout, name).ranges] for name in ("keys", "values")}
    lead = layout.first() if layout.lead else (Plane(16), Plane(16))
    heat = 0 if not scores.temperature_length else 2 if scores.cap_first else 1
    return {
        "SHARE": heads.share,
        "DIM": heads.head_dim,
        "D": heads.padded,
        "COLUMNS": plan.columns,
        "STAGES": 2 * plan.stages + 1,
        "GROUP": GROUP,
        "KEY_BITS": layout.keys.bits,
        "KEY_ALONG": along["keys"],
        "KEY_HALVES": layout.keys.bytes(heads.head_dim) // 2,
        "VALUE_BITS": layout.values.bits,
        "VALUE_ALONG": along["values"],
        "VALUE_HALVES": layout.values.bytes(heads.head_dim) // 2,
        "LEAD": layout.lead,
        "LEAD_KEY_HALVES": lead[0].bytes(heads.head_dim) // 2,
        "LEAD_VALUE_HALVES": lead[1].bytes(heads.head_dim) // 2,
        "WINDOW": scores.window >= 0,
        "CAP": scores.softcap > 0,
        "HEAT": heat,
        "TURN": plan.turn,
    }


def options(plan: Plan) -> dict[str, int | bool]:
    """What the compiler is told. A segment's page number is loaded before the page: two of its stages are one of ours."""
    return {"num_warps": plan.warps, "num_stages": 2 * plan.stages + 1, "enable_fp_fusion": False}


def numbers(scores: Scores) -> tuple[float, float, float, int, int, float]:
    """scale, cap_rate, cap, window, heat_from, heat_rate of `attend`, whose exponentials are of base 2."""
    base = math.log2(math.e)
    cap_rate, cap = (2 * base / scores.softcap, scores.softcap * base) if scores.softcap > 0 else (0.0, 0.0)
    scale = scores.scale if scores.softcap > 0 else scores.scale * base
    length = scores.temperature_length
    return scale, cap_rate, cap, max(scores.window, 0), length, 1 / math.log2(length) if length > 1 else 0.0


def prepare(chosen: Plan, work: Schedule, device: torch.device) -> Launch:
    units, merges = (torch.from_numpy(rows.astype(np.int32)).to(device) for rows in (work.units, np.pad(work.merges, ((0, 0), (0, 3)))))
    return Launch(chosen, units, merges, work.slots, work.per_group)


def run(
    q: torch.Tensor,
    tails: torch.Tensor,
    pages: torch.Tensor,
    table: torch.Tensor,
    launch: Launch,
    layout: Layout,
    scores: Scores,
    out: torch.Tensor,
) -> torch.Tensor:
    """Fill out [rows, heads, head_dim] for the rows that the launch names: two kernels at most, nothing read back."""
    from pitstop.ops.attention import triton_kernels

    _, heads, head_dim = q.shape
    kv_heads, chosen = tails.shape[1], launch.plan
    shape = Heads(heads, kv_heads, head_dim)
    sizes = launch.slots * kv_heads * chosen.columns
    parts = torch.empty(max(1, sizes * head_dim), dtype=torch.float32, device=q.device)
    sums = torch.empty(max(1, sizes * 2), dtype=torch.float32, device=q.device)
    scale, cap_rate, cap, window, heat_from, heat_rate = numbers(scores)
    triton_kernels.attend[len(launch.work), kv_heads](
        q, tails, pages, pages.view(torch.float16), table, launch.work, out, parts, sums,
        q.stride(0), pages.stride(0) // 2, kv_heads, scale, cap_rate, cap, window, heat_from, heat_rate,
        **constants(chosen, shape, layout, scores), **options(chosen),
    )  # fmt: skip
    if len(launch.merges):
        triton_kernels.merge[len(launch.merges), heads](
            launch.merges, parts, sums, out, kv_heads,
            SHARE=shape.share, DIM=head_dim, D=shape.padded, COLUMNS=chosen.columns, PER_GROUP=launch.per_group,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def attend(
    q: torch.Tensor, tails: torch.Tensor, pages: torch.Tensor, table: torch.Tensor, launch: Launch, layout: Layout, scores: Scores
) -> torch.Tensor:
    """paged_attention of rows that the launch names, all of them."""
    q = q if q.stride()[1:] == (q.shape[2], 1) else q.contiguous()
    return run(q, tails, pages, table, launch, layout, scores, torch.empty(q.shape, dtype=q.dtype, device=q.device))


def _refuse(q: torch.Tensor, tails: torch.Tensor, pages: torch.Tensor, table: torch.Tensor) -> str | None:
    if reason := gpu.refuse(q=q):
        return reason
    if tails.dtype is not torch.float16 or not tails.is_contiguous():
        return "tails must be contiguous float16"
    if pages.dtype is not torch.uint8 or pages.stride() != (pages.shape[1], 1) or pages.shape[1] % 16:
        return "pages must be contiguous uint8, of a multiple of 16 bytes"
    if table.dtype is not torch.int32 or not table.is_contiguous():
        return "table must be contiguous int32"
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"q is {q.dtype}"
    return None


def paged_attention(
    q: torch.Tensor,
    tails: torch.Tensor,
    pages: torch.Tensor,
    items: torch.Tensor,
    table: torch.Tensor,
    layout: Layout,
    scale: float,
    softcap: float,
    window: int,
    temperature_length: int,
    cap_first: bool,
) -> torch.Tensor | Declined:
    """Reads items back to plan: a step's layers share one Launch when they call `prepare` and `run` themselves."""
    if reason := _refuse(q, tails, pages, table):
        return Declined(reason)
    heads = Heads(q.shape[1], tails.shape[1], q.shape[2])
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)  # rows that no item names
    spans = items.tolist()
    if not spans or window == 0:
        return out
    chosen = plan([Span(count, start + count) for _, count, start, _, _, _ in spans], heads, layout, gpu.chip(q.device))
    if isinstance(chosen, str):
        return Declined(chosen)
    q = q if q.stride()[1:] == (q.shape[2], 1) else q.contiguous()
    launch = prepare(chosen, schedule(spans, chosen, window), q.device)
    return run(q, tails, pages, table, launch, layout, Scores(scale, softcap, window, temperature_length, cap_first), out)


assert SEGMENT == 128, "the kernels have it written out"
