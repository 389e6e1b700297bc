"""The mixture in plain torch, its inputs and tolerances."""

from __future__ import annotations

import torch

from pitstop.ops.moe.experts import Experts
from pitstop.ops.rowwise import rowwise

TOLERANCE = 1.2e-7
"""Of a weight, relative: fp64 rounded once, on both sides."""


def route(logits: torch.Tensor, top_k: int, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :top_k].contiguous()
    over = logits.gather(1, ids) if renormalise else logits
    shares = rowwise(lambda row: torch.softmax(row.double(), dim=1).float(), over)
    return ids, shares if renormalise else shares.gather(1, ids)


def mix(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: Experts) -> torch.Tensor:
    total = torch.zeros_like(x)
    for rank in range(ids.shape[1]):
        for expert in ids[:, rank].unique().tolist():
            rows = torch.nonzero(ids[:, rank] == expert).flatten()
            total[rows] += weights[rows, rank, None] * experts(expert, x[rows])
    return total


def make_inputs(seed: int, rows: int, width: int, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, width] and router logits [rows, experts], fp32; in some rows logits are equal."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, experts, generator=generator) * 3
    logits[1::4] = logits[1::4].round()
    return torch.randn(rows, width, generator=generator), logits
