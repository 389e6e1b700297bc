"""Routing and the mixture by Triton kernels (triton_kernels.py) on experts in lines (ops/linear/lines.py), without reading anything back.

Choices are gathered by expert, and cut into tiles of one expert each; a tile beyond the last has nothing to do. So an expert that no row
chose is not touched, what is padded is less than a tile an expert, and grids depend on how many choices there are, not on which. The
arithmetic is that of ops/linear/triton.py, of a row by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from pitstop.ops import gpu
from pitstop.ops.dispatch import Declined
from pitstop.ops.linear import plan as planner
from pitstop.ops.linear import triton as linear
from pitstop.ops.linear.packing import PackedLinear
from pitstop.ops.linear.plan import Plan, Shape
from pitstop.ops.moe.experts import Experts

MOST_EXPERTS = 512
"""A power of two at least as large is a block's vector."""
CHUNK = 1024


class Places(NamedTuple):
    """Where experts lie, from the first one: words and scales, in elements, int64 [experts] on the device."""

    words: torch.Tensor
    scales: torch.Tensor


class Work(NamedTuple):
    """order: choices by expert, int32. tiles: int32 [most tiles, 4], see triton_kernels.cut."""

    order: torch.Tensor
    tiles: torch.Tensor


def route(logits: torch.Tensor, top_k: int, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor] | Declined:
    if reason := gpu.refuse(logits=logits):
        return Declined(reason)
    rows, experts = logits.shape
    if experts > MOST_EXPERTS or logits.dtype is not torch.float32:
        return Declined(f"{experts} experts, {logits.dtype} logits; it takes up to {MOST_EXPERTS} and float32")
    from pitstop.ops.moe import triton_kernels

    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    ids = torch.empty(rows, top_k, dtype=torch.int64, device=logits.device)
    weights = torch.empty(rows, top_k, device=logits.device)
    if rows:
        size = 1 << (experts - 1).bit_length()
        triton_kernels.route[rows,](
            logits, ids, weights, logits.stride(0), EXPERTS=experts, E=size, TOP=top_k, RENORMALISE=renormalise, enable_fp_fusion=False
        )
    return ids, weights


def refuse(x: torch.Tensor, experts: Experts) -> str | None:
    """Why the kernels do not take these, or None."""
    if reason := gpu.refuse(x=x):
        return reason
    if x.dtype is not torch.float32:
        return f"x is {x.dtype}"
    if len(experts.down) > MOST_EXPERTS:
        return f"{len(experts.down)} experts are more than {MOST_EXPERTS}"
    for name, matrices in (("gate_up", experts.gate_up), ("down", experts.down)):
        forms = {matrix.form for matrix in matrices}
        if len(forms) > 1 or None in forms:
            return f"{name} packed as {', '.join(sorted({matrix.kind for matrix in matrices}))}, of {len(forms)} forms"
        if any(matrix.bias is not None for matrix in matrices):
            return f"{name} with a bias"
    return None


def mix(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: Experts) -> torch.Tensor | Declined:
    if reason := refuse(x, experts):
        return Declined(reason)
    rows, top_k = ids.shape
    out = torch.empty(x.shape, device=x.device)
    if not rows:
        return out
    from pitstop.ops.moe import triton_kernels

    choices, chip = rows * top_k, gpu.chip(x.device)
    first = planner.plan(_shape(choices, experts.gate_up), chip)
    second = planner.plan(_shape(choices, experts.down), chip, first.columns)
    work = cut(ids, len(experts.down), first)
    hidden = experts.activation(product(x, experts.gate_up, work, first, top_k))
    parts = product(hidden, experts.down, work, second, 1)
    width = out.shape[1]
    triton_kernels.combine[rows, -(-width // CHUNK)](
        parts, weights.contiguous(), out, width, TOP=top_k, CHUNK=CHUNK, enable_fp_fusion=False
    )  # fmt: skip
    return out


def _shape(choices: int, matrices: Sequence[PackedLinear]) -> Shape:
    one = matrices[0]
    return Shape(choices, one.out_features, one.in_features, one.form.codes, len(matrices))


def cut(ids: torch.Tensor, experts: int, plan: Plan) -> Work:
    """The choices [rows, top_k] by expert, and their tiles."""
    from pitstop.ops.moe import triton_kernels

    ids, size = ids.contiguous(), 1 << (experts - 1).bit_length()
    numbers = {"dtype": torch.int32, "device": ids.device}
    order, counts = torch.empty(ids.numel(), **numbers), torch.empty(experts, **numbers)
    tiles = torch.empty(plan.grid[1], 4, **numbers)
    triton_kernels.gather[experts,](ids, order, counts, ids.numel(), CHUNK=CHUNK)
    triton_kernels.cut[-(-plan.grid[1] // 32),](
        counts, tiles, plan.grid[1], EXPERTS=experts, E=size, COLUMNS=plan.columns, CHUNK=32
    )  # fmt: skip
    return Work(order, tiles)


def product(x: torch.Tensor, matrices: Sequence[PackedLinear], work: Work, plan: Plan, per_row: int) -> torch.Tensor:
    """Each choice's expert times its row of x, which has a row for `per_row` choices → [choices, out] fp32."""
    from pitstop.ops.moe import triton_kernels

    one, places = matrices[0], _places(matrices)
    depth = one.in_features
    x = linear.taken(x, plan, one.form)
    out = torch.empty(len(work.order), one.out_features, device=x.device)
    chosen = linear.constants(plan, one.form, depth, False)
    del chosen["BIAS"]
    triton_kernels.product[plan.grid](
        x, one.data, places.words, one.scales if one.scales is not None else one.data, places.scales, out,
        *linear.shared_memory(plan, depth, x.device), work.tiles, work.order, one.out_features, depth, x.stride(0), out.stride(0),
        *linear.cuts(plan, depth), per_row, **chosen, **linear.options(plan),
    )  # fmt: skip
    return out


_PLACES = WeakTensorKeyDictionary()
"""Places by the first expert's words: made once, since what comes from the host is waited for."""


def _places(matrices: Sequence[PackedLinear]) -> Places:
    key = matrices[0].data
    if (found := _PLACES.get(key)) is None:
        words = [(matrix.data.data_ptr() - key.data_ptr()) // 4 for matrix in matrices]
        scales = [0 if one.scales is None else (one.scales.data_ptr() - matrices[0].scales.data_ptr()) // 4 for one in matrices]
        found = Places(*(torch.tensor(offsets, device=key.device) for offsets in (words, scales)))
        _PLACES[key] = found
    return found
