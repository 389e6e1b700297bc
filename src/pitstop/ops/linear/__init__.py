"""y = x Wᵀ with a weight packed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from pitstop.errors import Unsupported
from pitstop.ops.dispatch import Op
from pitstop.ops.linear import cpu, ref
from pitstop.ops.linear.ref import PANEL

__all__ = ["PackedLinear", "linear", "pack", "rows"]


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight matrix [out_features, in_features] in the layout that its device's kernels read. Make it with `pack`.

    kind "panels": data fp32 [ceil(out / 16), in, 16], output columns padded with zeros, so that 16 outputs are reduced side by side,
    each in the order of `in`. kind "rows": data fp32 [out, in], as torch has it (CUDA).
    """

    kind: Literal["panels", "rows"]
    out_features: int
    in_features: int
    data: torch.Tensor

    def __str__(self) -> str:
        return f"{self.kind}[{self.out_features}, {self.in_features}] on {self.data.device}"


def pack(weight: torch.Tensor) -> PackedLinear:
    """weight [out, in] fp32 → packed for its device. Raises Unsupported for another dtype or rank."""
    if weight.dtype is not torch.float32 or weight.dim() != 2:
        raise Unsupported(f"pack takes a float32 matrix, got {weight.dtype} of shape {list(weight.shape)}")
    out_features, in_features = weight.shape
    if weight.is_cuda:
        return PackedLinear("rows", out_features, in_features, weight.contiguous())
    panels = -(-out_features // PANEL)
    data = torch.zeros(panels, in_features, PANEL)
    whole = out_features // PANEL
    data[:whole] = weight[: whole * PANEL].view(whole, PANEL, in_features).transpose(1, 2)
    if whole < panels:
        data[whole, :, : out_features - whole * PANEL] = weight[whole * PANEL :].T
    return PackedLinear("panels", out_features, in_features, data)


_linear = Op("linear", cpu=cpu.linear, ref=ref.linear)


def linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    """x [rows, in] fp32 → [rows, out] fp32. Each output is one chain of fused multiply-adds over `in`, ascending (native)."""
    if x.dim() != 2 or x.shape[1] != weight.in_features:
        raise ValueError(f"linear: x must be [rows, {weight.in_features}], got {list(x.shape)}")
    return _linear(x, weight)


def rows(weight: PackedLinear, ids: torch.Tensor) -> torch.Tensor:
    """Rows `ids` [n] int64 of the weight, exactly → [n, in] fp32 (an embedding that shares its matrix with the head)."""
    if weight.kind == "rows":
        return weight.data[ids]
    return weight.data[ids // PANEL, :, ids % PANEL]
