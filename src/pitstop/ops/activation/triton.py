"""The activations by Triton kernels (triton_kernels.py)."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Declined
from pitstop.ops.row_tiles import aligned, refuse, tile

MOST_COLUMNS = 1024
"""Of a tile."""


def constants(width: int, kind: str, gated: bool) -> dict[str, int | bool | str]:
    """The constants that `activate` is compiled with."""
    chosen = tile(width, MOST_COLUMNS)
    sizes = {"WIDTH": width, "COLUMNS": chosen.columns, "ROWS": chosen.rows, "UNIT": chosen.unit}
    return sizes | {"KIND": kind, "GATED": gated}


def options(width: int) -> dict[str, int | bool]:
    """What the compiler is told."""
    return {"num_warps": tile(width, MOST_COLUMNS).warps, "enable_fp_fusion": False}


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor | Declined:
    return refuse(gate_up=gate_up) or _launch(gate_up, "silu", gated=True)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor | Declined:
    return refuse(gate_up=gate_up) or _launch(gate_up, "gelu_tanh", gated=True)


def gelu_erf_mul(gate_up: torch.Tensor) -> torch.Tensor | Declined:
    return refuse(gate_up=gate_up) or _launch(gate_up, "gelu_erf", gated=True)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor | Declined:
    return refuse(x=x) or _launch(x, "gelu_tanh")


def gelu_erf(x: torch.Tensor) -> torch.Tensor | Declined:
    return refuse(x=x) or _launch(x, "gelu_erf")


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor | Declined:
    return refuse(x=x) or _launch(x, "softcap", cap)


def _launch(x: torch.Tensor, kind: str, cap: float = 1.0, gated: bool = False) -> torch.Tensor:
    from pitstop.ops.activation import triton_kernels

    rows, width = len(x), x.shape[1] // (2 if gated else 1)
    x, chosen = aligned(x), tile(width, MOST_COLUMNS)
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    if rows:
        triton_kernels.activate[-(-rows // chosen.rows), -(-width // chosen.columns)](
            x, out, x.stride(0) // chosen.unit, rows, cap, **constants(width, kind, gated), **options(width)
        )
    return out
