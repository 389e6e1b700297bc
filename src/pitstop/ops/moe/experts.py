"""The experts of one layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pitstop.ops.linear import PackedLinear, linear


@dataclass(frozen=True, slots=True)
class Experts:
    """Gated feed-forward networks of one shape: gate_up [2 · ffn, width] and down [width, ffn] of each.

    activation: of ops.activation, [rows, 2 · ffn] → [rows, ffn].
    """

    gate_up: tuple[PackedLinear, ...]
    down: tuple[PackedLinear, ...]
    activation: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Expert number `expert` on x [rows, width] fp32 → [rows, width] fp32."""
        return linear(self.activation(linear(x, self.gate_up[expert])), self.down[expert])

    def __str__(self) -> str:
        return f"{len(self.down)} experts of {self.gate_up[0]}"
