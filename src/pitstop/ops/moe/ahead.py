"""The kernels of routing and grouped experts compiled ahead of time."""

from __future__ import annotations

from pitstop.ops import ahead
from pitstop.ops.ahead import Compiled
from pitstop.ops.chip import Chip
from pitstop.ops.linear import ahead as linear_ahead
from pitstop.ops.linear.lines import Form
from pitstop.ops.linear.plan import Plan, Shape
from pitstop.ops.linear.triton import constants, options
from pitstop.ops.moe.triton import CHUNK

POINTERS = {"data_offsets": "*i64", "scale_offsets": "*i64", "tiles": "*i32", "order": "*i32"}


def compile_plan(plan: Plan, shape: Shape, chip: Chip) -> Compiled:
    """The product of experts for this plan, as linear.ahead has it of one matrix."""
    from pitstop.ops.moe.triton_kernels import product

    form = Form(shape.codes, 2 if chip.arch >= 90 else 4)
    chosen = constants(plan, form, shape.depth, False)
    del chosen["BIAS"]
    pointers = linear_ahead.POINTERS | POINTERS | linear_ahead.activations(plan, shape.codes)
    del pointers["bias_at"]
    numbers = linear_ahead.NUMBERS | {"per_row": "i32"}
    del numbers["rows"]
    return ahead.compile(product, pointers | numbers, chosen, chip.arch, options(plan), (linear_ahead.ALIGNED - {"bias_at"}) | {*pointers})


def compile_others(experts: int, top_k: int, chip: Chip) -> dict[str, Compiled]:
    """The kernels around it, by name."""
    from pitstop.ops.moe import triton_kernels as kernels

    size = 1 << (experts - 1).bit_length()
    launches = {
        "route": (
            {"logits": "*fp32", "ids": "*i64", "weights": "*fp32", "stride": "i32"},
            {"EXPERTS": experts, "E": size, "TOP": top_k, "RENORMALISE": True},
        ),
        "gather": ({"ids": "*i64", "order": "*i32", "counts": "*i32", "choices": "i32"}, {"CHUNK": CHUNK}),
        "cut": (
            {"counts": "*i32", "tiles": "*i32", "places": "i32"},
            {"EXPERTS": experts, "E": size, "COLUMNS": 16, "CHUNK": 32},
        ),
        "combine": (
            {"parts": "*fp32", "weights": "*fp32", "out": "*fp32", "width": "i32"},
            {"TOP": top_k, "CHUNK": CHUNK},
        ),
    }  # fmt: skip
    return {
        name: ahead.compile(getattr(kernels, name), signature, given, chip.arch, {"enable_fp_fusion": False}, {*signature} - {"choices"})
        for name, (signature, given) in launches.items()
    }
