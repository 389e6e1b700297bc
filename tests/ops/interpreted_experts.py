"""What the Triton kernels of routing and grouped experts answer: test_triton_experts.py judges.

A program for interpreter.py.
"""

from __future__ import annotations

import torch
from interpreted_linear import DEVICE, STEPS, different, stored
from interpreter import main

from pitstop.ops import dispatch, moe
from pitstop.ops.activation.ref import silu_mul
from pitstop.ops.linear import linear
from pitstop.ops.linear.packing import pack_lines
from pitstop.ops.moe import ref, triton

WIDTH, FFN, EXPERTS, TOP = 64, 32, 8, 3


def matrices(kind: str, seed: int, outs: int, depth: int):
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(outs, depth, generator=generator) / depth**0.5 for _ in range(EXPERTS)]
    return tuple(pack_lines([stored(kind, weight)], torch.device(DEVICE), STEPS[0]) for weight in weights)


def some_experts(kind: str, width: int = WIDTH) -> moe.Experts:
    return moe.Experts(matrices(kind, 1, 2 * FFN, width), matrices(kind, 2, width, FFN), silu_mul)


def inputs(seed: int, rows: int, width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, ids and weights."""
    x, logits = ref.make_inputs(seed, rows, width, EXPERTS)
    with dispatch.use("ref"):
        ids, weights = moe.route(logits, TOP, True)
    return x.to(DEVICE), ids.to(DEVICE), weights.to(DEVICE)


def mixed(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: moe.Experts) -> torch.Tensor:
    with dispatch.use("triton"):
        return moe.mix(x, ids, weights, experts)


def one_by_one(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: moe.Experts) -> torch.Tensor:
    """Each row's experts as products of that row alone, weighted and added in order."""
    answers = []
    with dispatch.use("triton"):
        for row in range(len(x)):
            total = None
            for expert, weight in zip(ids[row].tolist(), weights[row], strict=True):
                part = linear(silu_mul(linear(x[row : row + 1], experts.gate_up[expert])), experts.down[expert]) * weight
                total = part if total is None else total + part
            answers.append(total)
    return torch.cat(answers)


def routes() -> dict[str, float]:
    """Choices that are not the reference's, and the largest error of a weight, relative; rows with equal logits, infinities and NaN."""
    found = {}
    for experts, top in ((EXPERTS, TOP), (5, 5), (60, 4)):
        _, logits = ref.make_inputs(experts, 30, 1, experts)
        logits[3, 2] = logits[4, 1] = float("-inf")
        logits[5, 3], logits[6, :], logits[7, 4] = float("nan"), float("-inf"), float("inf")
        for renormalise in (True, False):
            with dispatch.use("ref"):
                ids, weights = moe.route(logits, top, renormalise)
            with dispatch.use("triton"):
                actual = [tensor.cpu() for tensor in moe.route(logits.to(DEVICE), top, renormalise)]
            name = f"{top} of {experts}, {renormalise}"
            found[f"{name}: choices"] = float((actual[0] != ids).sum())
            found[f"{name}: not numbers"] = float((actual[1].isnan() != weights.isnan()).sum())
            sound = weights.nan_to_num(0) > 0
            found[f"{name}: weights"] = float(((actual[1] - weights)[sound] / weights[sound]).abs().max())
    return found


def mixtures() -> dict[str, float]:
    """Bits that are not those of products one by one; of a row alone, and backwards; that change with experts whom nobody chose."""
    experts = some_experts("Q4_0")
    x, ids, weights = inputs(3, 9)
    whole = mixed(x, ids, weights, experts)
    found = {"one by one": different(whole[:3], one_by_one(x[:3], ids[:3], weights[:3], experts))}
    return found | _company("Q4_0", experts, x, ids, weights)


def more_mixtures() -> dict[str, float]:
    """Other kinds; and inputs of 1,056, which have two parts."""
    found = {}
    for kind in ("I8", "Q8_0", "BF16"):
        found |= _company(kind, some_experts(kind), *inputs(3, 20))
    experts, (x, ids, weights) = some_experts("Q4_0", 1056), inputs(5, 4, 1056)
    return found | {"wide, one by one": different(mixed(x, ids, weights, experts), one_by_one(x, ids, weights, experts))}


def _company(kind: str, experts: moe.Experts, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> dict[str, float]:
    whole, few = mixed(x, ids, weights, experts), ids.clone()
    found = {
        "backwards": different(mixed(x.flip(0), ids.flip(0), weights.flip(0), experts), whole.flip(0)),
        "a row alone": different(mixed(x[7:8], ids[7:8], weights[7:8], experts), whole[7:8]),
        "no rows": float(mixed(x[:0], ids[:0], weights[:0], experts).numel()),
    }
    few[few == 5] = 2
    expected = mixed(x, few, weights, experts)
    for matrix in (experts.gate_up[5], experts.down[5]):
        matrix.data.fill_(-1)  # scales that are no numbers
        if matrix.scales is not None:
            matrix.scales.fill_(torch.nan)
    found["nobody's expert"] = different(mixed(x, few, weights, experts), expected)
    return {f"{kind}, {name}": count for name, count in found.items()}


def tiles() -> dict[str, float]:
    """Choices that are in no tile of their expert, or in two; of 40 rows, all of which chose expert 1, in tiles of 16."""
    _, ids, _ = inputs(4, 40)
    ids[:, 0] = 1
    ids[:, 1:] += (ids[:, 1:] == 1).long()
    from pitstop.ops.chip import H200
    from pitstop.ops.linear.plan import Shape, tile

    plan = tile(Shape(ids.numel(), 64, 64, "4", EXPERTS), H200, 64, 16, 2, 1, False)
    work = triton.cut(ids, EXPERTS, plan)
    met = torch.zeros(ids.numel(), dtype=torch.int64)
    strangers = 0
    for expert, first, count in work.tiles[:, :3].tolist():
        choices = work.order[first : first + count].long()
        met[choices] += 1
        strangers += int((ids.flatten()[choices] != expert).sum())
    return {"missed or met twice": float((met != 1).sum()), "strangers": strangers, "tiles": float((work.tiles[:, 2] > 0).sum())}


CHECKS = {check.__name__: check for check in (routes, mixtures, more_mixtures, tiles)}


if __name__ == "__main__":
    main(CHECKS, {"triton_kernels": moe})
