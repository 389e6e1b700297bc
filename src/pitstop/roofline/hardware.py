"""Accelerators by their data sheets, and what follows for the bytes of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

USABLE = 0.9
"""Share of an accelerator's memory for weights and KV cache: the rest goes to activations, graphs and the driver."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """memory in bytes, bandwidth in bytes a second (vendors' gigabytes: 10⁹)."""

    name: str
    memory: float
    bandwidth: float

    def needed(self, size: float) -> int:
        """How many hold `size` bytes, shared out evenly."""
        return max(1, math.ceil(size / (self.memory * USABLE)))


ACCELERATORS = (
    Accelerator("A100 80G SXM", 80e9, 2039e9),
    Accelerator("H100 80G PCIe", 80e9, 2000e9),
    Accelerator("H100 80G SXM", 80e9, 3350e9),
    Accelerator("H200 141G", 141e9, 4800e9),
)


def together(count: int) -> int:
    """How many are used where `count` are needed: heads and experts divide among powers of two."""
    return 1 << (count - 1).bit_length()


def read_seconds(size: float, accelerator: Accelerator, count: int) -> float:
    """The least time in which `count` of them read `size` bytes, shared out evenly."""
    return size / (accelerator.bandwidth * count)
