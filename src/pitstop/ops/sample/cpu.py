"""The reference's draw with the native e^x, which is the host's and that of the kernels for GPUs."""

from __future__ import annotations

import torch

from pitstop.ops import dispatch
from pitstop.ops.dispatch import Declined
from pitstop.ops.rows import refuse
from pitstop.ops.sample import ref


def draw(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor | Declined:
    return refuse(logits=logits) or ref.draw(logits, draws, _exp)


def _exp(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    dispatch.native.exp(x.data_ptr(), out.data_ptr(), x.numel())
    return out
