"""Mixture of experts (Shazeer et al. 2017): which experts a row goes to, and their feed-forward networks on the rows that chose them."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Op
from pitstop.ops.moe import cpu, ref, triton
from pitstop.ops.moe.experts import Experts

__all__ = ["Experts", "mix", "route"]

_route = Op("route", triton=triton.route, cpu=cpu.route, ref=ref.route)
_mix = Op("mix", triton=triton.mix, cpu=cpu.mix, ref=ref.mix)


def route(logits: torch.Tensor, top_k: int, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [rows, experts] fp32 → each row's `top_k` experts, the largest logit first, of equals the lower number.

    They are ids [rows, top_k] int64 and weights [rows, top_k] fp32.

    The weights are the experts' shares of the softmax over all; renormalise: over the chosen ones, as a softmax after the choice gives.
    """
    if logits.dim() != 2 or not 0 < top_k <= logits.shape[1]:
        raise ValueError(f"route: logits must be [rows, experts] of at least {top_k} experts, got {list(logits.shape)}")
    return _route(logits, top_k, renormalise)


def mix(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: Experts) -> torch.Tensor:
    """x [rows, width] fp32, ids and weights from `route` → Σ over a row's experts of weight · expert(x), [rows, width] fp32.

    An expert runs on the rows that chose it, and is not touched where none did: there is no padding. A row's terms are added in the
    order of its `ids`, whatever the other rows chose. Cannot be recorded in a graph: Unsupported, by `route` already.
    """
    if ids.shape != weights.shape or len(ids) != len(x):
        raise ValueError(f"mix: x {list(x.shape)}, ids {list(ids.shape)} and weights {list(weights.shape)} do not fit together")
    return _mix(x, ids, weights, experts)
