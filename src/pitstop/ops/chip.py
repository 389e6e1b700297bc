"""GPUs, as far as launch plans depend on them. Imports no torch."""

from __future__ import annotations

from typing import NamedTuple

OVERHEAD = 1024
"""Bytes of shared memory that the driver keeps for each block."""


class Chip(NamedTuple):
    """A GPU, as far as plans depend on it. shared_block and shared_sm in bytes; registers of 4 bytes and warps an SM."""

    arch: int  # 80: sm_80
    sms: int
    shared_block: int
    shared_sm: int
    registers: int = 65536
    warps: int = 64


A100 = Chip(80, 108, 163 << 10, 164 << 10)
H100_PCIE = Chip(90, 114, 227 << 10, 228 << 10)
H200 = Chip(90, 132, 227 << 10, 228 << 10)
"""And H100 SXM."""


def resident_blocks(chip: Chip, warps: int, registers: int, shared: int) -> int:
    """Blocks that an SM holds together. Registers are handed out to warps by 256."""
    by_registers = chip.registers // (-(-registers * 32 // 256) * 256 * warps)
    return min(by_registers, chip.shared_sm // (shared + OVERHEAD), chip.warps // warps)
