"""The norms by Triton kernels (triton_kernels.py)."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Declined
from pitstop.ops.row_tiles import aligned, refuse, tile

MOST_WIDTH = 16384
"""Beyond, a row does not fit into a block's registers."""


def constants(width: int, add: bool = False, centre: bool = False) -> dict[str, int | bool]:
    """The constants that `normalise` is compiled with."""
    chosen = tile(width, MOST_WIDTH)
    sizes = {"WIDTH": width, "COLUMNS": chosen.columns, "ROWS": chosen.rows, "UNIT": chosen.unit}
    return sizes | {"ADD": add, "CENTRE": centre}


def options(width: int) -> dict[str, int | bool]:
    """What the compiler is told."""
    return {"num_warps": tile(width, MOST_WIDTH).warps, "enable_fp_fusion": False}


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor | Declined:
    return refuse(x=x, weight=weight) or _refuse_width(weight) or _launch(x, None, weight, None, eps)[1]


def add_rms_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor] | Declined:
    return refuse(x=x, y=y, weight=weight) or _refuse_width(weight) or _launch(x, y, weight, None, eps)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor | Declined:
    return refuse(x=x, weight=weight, bias=bias) or _refuse_width(weight) or _launch(x, None, weight, bias, eps)[1]


def _refuse_width(weight: torch.Tensor) -> Declined | None:
    return Declined(f"rows of {len(weight)} are wider than {MOST_WIDTH}") if len(weight) > MOST_WIDTH else None


def _launch(
    x: torch.Tensor, y: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x + y, where there is a y, and what comes of it."""
    from pitstop.ops.norm import triton_kernels

    width, add, centre = len(weight), y is not None, bias is not None
    chosen, heads = tile(width, MOST_WIDTH), x.shape[1] if x.dim() == 3 else 1
    x, weight = aligned(x), aligned(weight)
    other, bias = aligned(y) if add else x, aligned(bias) if centre else weight
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out) if add else out
    if rows := x.numel() // width:
        triton_kernels.normalise[(-(-rows // chosen.rows),)](
            x, other, weight, bias, total, out, x.stride(0) // chosen.unit, other.stride(0) // chosen.unit, rows, heads, eps,
            **constants(width, add, centre), **options(width),
        )  # fmt: skip
    return total, out
