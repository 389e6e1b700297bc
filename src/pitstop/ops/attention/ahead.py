"""The attention kernel compiled ahead of time, as a plan would launch it on a chip."""

from __future__ import annotations

import re

from pitstop.ops import ahead
from pitstop.ops.ahead import Compiled
from pitstop.ops.attention.layout import Layout
from pitstop.ops.attention.plan import Heads, Plan
from pitstop.ops.attention.triton import Scores, constants, options
from pitstop.ops.chip import Chip

POINTERS = {
    "q_at": "*fp32", "tails": "*fp16", "pages8": "*u8", "pages16": "*fp16", "table": "*i32", "work": "*i32", "out_at": "*fp32",
    "parts": "*fp32", "sums": "*fp32",
}  # fmt: skip
NUMBERS = {
    "q_stride": "i32", "page_halves": "i32", "kv_heads": "i32", "scale": "fp32", "cap_rate": "fp32", "cap": "fp32", "window": "i32",
    "heat_from": "i32", "heat_rate": "fp32",
}  # fmt: skip
ALIGNED = {*POINTERS, "q_stride", "page_halves"}


def compile_plan(plan: Plan, heads: Heads, layout: Layout, chip: Chip, scores: Scores | None = None) -> Compiled:
    """The kernel for this plan: fp32 queries and answers, page sizes of a multiple of 32 bytes."""
    from pitstop.ops.attention.triton_kernels import attend

    chosen = constants(plan, heads, layout, scores or Scores(1.0))
    return ahead.compile(attend, POINTERS | NUMBERS, chosen, chip.arch, options(plan), ALIGNED)


def arithmetic(compiled: Compiled) -> frozenset[tuple[str, ...]]:
    """What a row's bits depend on in the compiled form, tile width left out: the tensor cores' generation, how warps share the rows of a
    product (they are what is summed over), how many neighbours in the reduced dimension a thread holds."""
    found = set()
    for rows, layout, widths in ahead.products(compiled.ttgir):
        generation = re.search(r"versionMajor = (\d+)", layout)[1]
        warps = re.search(r"warpsPerCTA = \[(\d+)", layout)[1]
        found.add((rows, generation, warps, *widths))
    return frozenset(found)
