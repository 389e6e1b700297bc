"""The kernel of products compiled ahead of time, as a plan would launch it on a chip."""

from __future__ import annotations

import re

from pitstop.ops import ahead
from pitstop.ops.ahead import Compiled
from pitstop.ops.chip import Chip
from pitstop.ops.linear.lines import Form
from pitstop.ops.linear.plan import Plan, Shape
from pitstop.ops.linear.triton import constants, options

POINTERS = {
    "data": "*i32", "scales_at": "*fp32", "bias_at": "*fp32", "out_at": "*fp32", "sums": "*fp32", "arrived": "*i32",
}  # fmt: skip
NUMBERS = dict.fromkeys(
    ("rows", "outs", "depth", "x_stride", "out_stride", "blocks", "per_part", "parts", "per_block"), "i32"
)  # fmt: skip
ALIGNED = {*POINTERS, "x_at", "outs", "depth", "x_stride", "out_stride"}


def compile_plan(plan: Plan, shape: Shape, chip: Chip) -> Compiled:
    """The kernel for this plan: fp32 activations (rounded ones where the plan says so), widths of a multiple of 16, no bias."""
    from pitstop.ops.linear.triton_kernels import product

    form = Form(shape.codes, 2 if chip.arch >= 90 else 4)
    signature = POINTERS | NUMBERS | activations(plan, shape.codes)
    return ahead.compile(product, signature, constants(plan, form, shape.depth, False), chip.arch, options(plan), ALIGNED)


def activations(plan: Plan, codes: str) -> dict[str, str]:
    """Their type in the signature."""
    return {"x_at": "*fp32" if not plan.ready else "*bf16" if codes == "bf16" else "*fp16"}


def arithmetic(compiled: Compiled) -> frozenset[tuple[str, ...]]:
    """What an output's bits depend on in the compiled form: the tensor cores' generation, how many neighbouring inputs a thread holds, and
    how many inputs a product adds up before it is seen."""
    found = set()
    for _, layout, widths in ahead.products(compiled.ttgir):
        found.add((re.search(r"versionMajor = (\d+)", layout)[1], *widths))
    return frozenset(found)
