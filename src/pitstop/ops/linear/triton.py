"""linear by Triton kernels (triton_kernels.py) on weights in lines (lines.py), launched as plan.py says.

Products are of fp16 numbers, summed in fp32; of bf16 numbers where the weights are. Codes of 8 bits with a scale for each output, fp16 and
bf16 weights go in as they are, other codes are numbers first, rounded once. Activations are rounded: to bf16 beside bf16, else to fp16 of a
sixteenth of them, so that they may reach 2²⁰, and an error of 2⁻²¹ does not matter; beyond lies infinity.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from pitstop.ops import gpu
from pitstop.ops.dispatch import Declined
from pitstop.ops.linear import plan as planner
from pitstop.ops.linear.lines import Form
from pitstop.ops.linear.plan import Plan, Shape

if TYPE_CHECKING:
    from pitstop.ops.linear.packing import PackedLinear

TOLERANCE = {"4": 2**-9, "8": 2**-9, "int8": 2**-10, "f16": 2**-10, "bf16": 2**-7}
"""By the weights' codes: |y - exact| ≤ TOLERANCE · (Σ x²w²)^½, and 2⁻²⁰ · (Σ w²)^½ where activations are small. A product is off by a
rounding or two of at most a fourth of TOLERANCE each, and errors add up like a random walk."""

TYPES = {"4": torch.float16, "8": torch.float16, "int8": torch.float16, "f16": torch.float16, "bf16": torch.bfloat16}
"""What the tensor cores multiply."""


def constants(plan: Plan, form: Form, depth: int, bias: bool) -> dict[str, int | bool | str]:
    """The constants that `product` is compiled with."""
    return {
        "KIND": form.codes,
        "STEP": form.step,
        "WORDS": form.words,
        "PANELS": plan.outs // 16,
        "COLUMNS": plan.columns,
        "STAGES": plan.stages,
        "READY": plan.ready,
        "SHARED": plan.splits > 1,
        "PARTED": planner.parts(depth)[0] > 1,
        "BIAS": bias,
    }


def options(plan: Plan) -> dict[str, int | bool]:
    """What the compiler is told. Without a limit it spills a few registers of 142 so that two blocks of 128 would fit."""
    return {"num_warps": plan.warps, "num_stages": plan.stages, "maxnreg": plan.registers, "enable_fp_fusion": False}


def rounded(x: torch.Tensor, codes: str) -> torch.Tensor:
    """Activations as the tensor cores take them, as the kernel rounds them."""
    factor = 1.0 if codes == "bf16" else 0.0625
    return torch.mul(x, factor, out=torch.empty(x.shape, dtype=TYPES[codes], device=x.device))


@cache
def _arrived(device: torch.device) -> torch.Tensor:
    """Zeros that kernels count in and leave zero: one stream's at a time."""
    return torch.zeros(planner.MOST_SHARED, dtype=torch.int32, device=device)


def run(x: torch.Tensor, weight: PackedLinear, plan: Plan, out: torch.Tensor) -> torch.Tensor:
    """Fill out [rows, outs] fp32, whose rows are contiguous: one launch, or two where activations are rounded before."""
    from pitstop.ops.linear import triton_kernels

    form, depth = weight.form, weight.in_features
    x = taken(x, plan, form)
    triton_kernels.product[plan.grid](
        x, weight.data, *(given if given is not None else weight.data for given in (weight.scales, weight.bias)), out,
        *shared_memory(plan, depth, x.device), len(x), weight.out_features, depth, x.stride(0), out.stride(0), *cuts(plan, depth),
        **constants(plan, form, depth, weight.bias is not None), **options(plan),
    )  # fmt: skip
    return out


def taken(x: torch.Tensor, plan: Plan, form: Form) -> torch.Tensor:
    """x as the plan's kernel takes it."""
    return rounded(x, form.codes) if plan.ready else x if x.stride(1) == 1 else x.contiguous()


def shared_memory(plan: Plan, depth: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """`sums` and `arrived` of a launch."""
    size = plan.grid[0] * plan.grid[1] * planner.parts(depth)[0] * plan.outs * plan.columns if plan.splits > 1 else 1
    return torch.empty(size, dtype=torch.float32, device=device), _arrived(device)


def cuts(plan: Plan, depth: int) -> tuple[int, int, int, int]:
    """Blocks, blocks of a part, parts, and parts of a block of threads."""
    count, per_part = planner.parts(depth)
    return -(-depth // planner.BLOCK), per_part, count, -(-count // plan.splits)


def _refuse(x: torch.Tensor, weight: PackedLinear) -> str | None:
    if reason := gpu.refuse(x=x):
        return reason
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"x is {x.dtype}"
    for part in weight.parts or (weight,):
        if part.kind != "lines":
            return f"packed as {part.kind}"
    return None


def linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor | Declined:
    if reason := _refuse(x, weight):
        return Declined(reason)
    out = torch.empty(len(x), weight.out_features, dtype=torch.float32, device=x.device)
    first = 0
    for part in weight.parts or (weight,):
        if len(x):
            chosen = planner.plan(Shape(len(x), part.out_features, part.in_features, part.form.codes), gpu.chip(x.device))
            run(x, part, chosen, out[:, first : first + part.out_features])
        first += part.out_features
    return out if weight.bias is None or not weight.parts else out + weight.bias
