"""The choices in plain torch, and their inputs. There is nothing to tolerate."""

from __future__ import annotations

import torch


def greedy(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(dim=1)


def candidates(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, ids = logits.sort(dim=1, descending=True, stable=True)
    return values[:, :k].contiguous(), ids[:, :k].contiguous()


def make_inputs(seed: int, rows: int, vocab: int) -> torch.Tensor:
    """logits [rows, vocab] fp32 in steps of 1/8, so that many are equal; rows of equal ones, of zeros of both signs, with infinities
    and with NaN come first, as far as there are rows."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, vocab, generator=generator) * 24).round() / 8
    logits[:1] = -torch.inf
    logits[1:2] = 0.0
    logits[1:2, ::2] = -0.0
    logits[2:3, vocab // 2 :] = torch.inf
    logits[3:4, vocab // 3] = torch.nan
    return logits
