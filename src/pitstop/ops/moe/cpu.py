"""Routing by the native kernels; the mixture sorted by expert, so that each one's weights are read once."""

from __future__ import annotations

import torch

from pitstop.ops import dispatch
from pitstop.ops.dispatch import Declined
from pitstop.ops.moe.experts import Experts
from pitstop.ops.rows import refuse


def route(logits: torch.Tensor, top_k: int, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor] | Declined:
    if reason := refuse(logits=logits) or _refuse_recording():
        return reason
    logits = logits.contiguous()
    rows, experts = logits.shape
    ids, weights = torch.empty(rows, top_k, dtype=torch.int64), torch.empty(rows, top_k)
    dispatch.native.route(logits.data_ptr(), rows, experts, top_k, renormalise, ids.data_ptr(), weights.data_ptr())
    return ids, weights


def mix(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: Experts) -> torch.Tensor | Declined:
    if reason := refuse(x=x, weights=weights) or _refuse_recording():
        return reason
    top_k = ids.shape[1]
    chosen = ids.flatten()
    order = torch.argsort(chosen, stable=True)
    parts = torch.empty(len(order), x.shape[1])
    end = 0
    for expert, count in enumerate(torch.bincount(chosen, minlength=len(experts.down)).tolist()):
        if count:
            places = order[end : end + count]
            parts[places] = experts(expert, x[places // top_k])
            end += count
    parts = parts.unflatten(0, (-1, top_k)) * weights[:, :, None]
    total = parts[:, 0]
    for rank in range(1, top_k):  # not torch's sum, whose order may depend on the number of rows
        total = total + parts[:, rank]
    return total.contiguous()


def _refuse_recording() -> Declined | None:
    return Declined("which experts run depends on the rows, so that it cannot be recorded") if dispatch.recording() else None
