"""How a product with packed weights is launched on a GPU: chosen for each launch, pure arithmetic, explained in words. Imports no torch.

Bits do not depend on a plan (triton_kernels.py): how many parts a sum has is the matrix's, a warp has 16 outputs in every tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from pitstop.ops.chip import Chip, resident_blocks

BLOCK = 128
"""Inputs that are read together: a step of the kernel's loop."""

PART, MOST_PARTS = 8, 8
"""A sum over inputs has a part for each 8 blocks, up to 8 parts."""

COLUMNS = {80: (16, 32, 64), 90: (16, 32, 64, 128)}
OUTS = (64, 128)
STAGES = (2, 3, 4, 5)
SPLITS = (1, 2, 4, 8)
"""What a plan chooses from. Columns by architecture: with 128 registers spill on sm_80. stages: of Triton's pipeline, one step in work and
the others on their way."""

MOST_SHARED = 1 << 16
"""Tiles whose parts blocks may share: each has a counter."""

LATENCY = 24 << 10
"""Bytes that an SM could read while a block starts and ends, and half of those during a launch; as many must be on their way for its share
of the bandwidth."""


class Shape(NamedTuple):
    """A product: activation rows, outputs, inputs; codes: see lines.Form. experts: matrices, of which each row has one."""

    rows: int
    outs: int
    depth: int
    codes: str
    experts: int = 1

    @property
    def blocks(self) -> int:
        return -(-self.depth // BLOCK)

    def tiles(self, columns: int) -> int:
        """Of rows, at most."""
        return (self.rows + min(self.experts, self.rows) * (columns - 1)) // columns


@dataclass(frozen=True, slots=True)
class Plan:
    """outs, columns: of a tile, of outputs and activation rows. stages: see STAGES. splits: blocks that share a tile's parts.
    ready: activations are rounded in a launch before. grid: tiles of outputs, of rows, splits. shared: bytes a block, registers: a
    thread, both at most; resident: blocks an SM."""

    outs: int
    columns: int
    warps: int
    stages: int
    splits: int
    ready: bool
    grid: tuple[int, int, int]
    resident: int
    shared: int
    registers: int
    why: tuple[str, ...]


def parts(depth: int) -> tuple[int, int]:
    """Of a sum over `depth` inputs: how many, and the blocks of each (the last may have fewer)."""
    blocks = -(-depth // BLOCK)
    per_part = -(-blocks // min(MOST_PARTS, -(-blocks // PART)))
    return -(-blocks // per_part), per_part


_LINE_BITS = {"4": (4, 32), "8": (8, 16), "int8": (8, 0), "f16": (16, 0), "bf16": (16, 0)}
"""Bits of a weight, and bits of scales for each 32 weights."""


def step_bytes(outs: int, codes: str) -> int:
    """Of weights and scales that a block reads in a step."""
    bits, scales = _LINE_BITS[codes]
    return outs * BLOCK * (32 * bits + scales) // 32 // 8


def shared_bytes(outs: int, columns: int, stages: int, splits: int, ready: bool, codes: str, chip: Chip) -> int:
    """Of a block, at most: lines on their way, scales four times over (a thread has its own), activations, and those once more as numbers;
    beside them a part's sums on their way out, or all sums at the end."""
    bits, scales = _LINE_BITS[codes]
    lines = outs * BLOCK * bits // 8 + outs * BLOCK * scales // 32 // 8 * 4
    activations = columns * BLOCK * (2 if ready else 4)
    waiting = (stages - 1) * lines + (stages if ready and chip.arch >= 90 else stages - 1) * activations
    numbers = 0 if ready else columns * BLOCK * 2
    part = 4 * outs * columns if splits > 1 else 0
    return max(waiting + numbers + part, 4 * outs * (columns + 4)) + 64


def thread_registers(outs: int, columns: int, parted: bool, experts: bool) -> int:
    """Of a thread, at most: sums (twice where parts are added up), weights as numbers, addresses (twice where each row has its own, as
    experts' have), and activations, of which each of four warps holds twice what each of eight does."""
    return min(255, columns // 2 * (2 if parted else 1) + columns // 4 * (2 if experts else 1) + (120 if outs == 64 else 88))


@lru_cache(4096)
def plan(shape: Shape, chip: Chip, columns: int = 0) -> Plan:
    """The plan for one launch: of all tiles that fit, the one whose busiest SM has the least to read. columns: of every tile, if not 0."""
    cost, chosen = min(_candidates(shape, chip, columns), key=lambda pair: pair[0])
    count, per_part = parts(shape.depth)
    tiles = chosen.grid[0] * chosen.grid[1]
    blocks = tiles * chosen.splits
    moving = chosen.resident * (chosen.stages - 1) * step_bytes(chosen.outs, shape.codes) >> 10
    idle = chosen.grid[1] * chosen.columns - shape.rows
    why = (
        f"{chosen.outs} outputs by {chosen.columns} rows a tile: {tiles} tiles, up to {idle} rows idle"
        + (", activations rounded before" if chosen.ready else ""),
        f"{count} parts of {per_part * BLOCK} inputs, {chosen.splits} blocks a tile: {blocks} blocks for {chip.sms} SMs",
        f"{chosen.stages} stages: {chosen.shared} bytes, {chosen.resident} blocks of {chosen.warps} warps an SM, {moving} KB on their way",
        f"the busiest SM reads {int(cost) >> 10} KB, with starts and ends",
    )
    return replace(chosen, why=why)


def fixed(shape: Shape, chip: Chip) -> Plan:
    """The same kernel with one tile for all: 128 outputs by 64 rows, 2 stages, no parts shared, rounded before. A baseline."""
    return replace(tile(shape, chip, 128, 64, 2, 1, True), why=("fixed",))


def tile(shape: Shape, chip: Chip, outs: int, columns: int, stages: int, splits: int, ready: bool) -> Plan:
    """The plan with this tile, unexplained."""
    shared = shared_bytes(outs, columns, stages, splits, ready, shape.codes, chip)
    registers = thread_registers(outs, columns, parts(shape.depth)[0] > 1 and splits == 1, shape.experts > 1)
    grid = -(-shape.outs // outs), shape.tiles(columns), splits
    warps = outs // 16
    resident = resident_blocks(chip, warps, registers, shared)
    return Plan(outs, columns, warps, stages, splits, ready, grid, resident, shared, registers, ())


def _candidates(shape: Shape, chip: Chip, given: int) -> Iterator[tuple[float, Plan]]:
    """Plans that fit, with their costs."""
    count, _ = parts(shape.depth)
    some, rows = COLUMNS[chip.arch], -(-shape.rows // shape.experts)
    least = next((one for one in some if one >= rows), some[-1])
    for columns in (given,) if given else (one for one in some if one <= least):
        for outs, stages, splits, ready in product(OUTS, STAGES, SPLITS, (False, True)):
            candidate = tile(shape, chip, outs, columns, stages, splits, ready)
            fits = candidate.shared <= chip.shared_block and candidate.resident and splits <= count
            if fits and (splits == 1 or candidate.grid[0] * candidate.grid[1] <= MOST_SHARED):
                yield _cost(candidate, shape, chip), candidate


def _cost(plan: Plan, shape: Shape, chip: Chip) -> float:
    """Bytes that the busiest SM reads, from memory or from the cache, and could have read while blocks start and end."""
    count, per_part = parts(shape.depth)
    steps = min(-(-count // plan.splits) * per_part, shape.blocks)
    weights = step_bytes(plan.outs, shape.codes)
    block = steps * (weights + min(plan.columns, shape.rows) * BLOCK * (2 if plan.ready else 4))
    if plan.splits > 1:
        block += 8 * plan.outs * min(plan.columns, shape.rows) * -(-count // plan.splits)  # sums written and read
    tiles = plan.grid[0] * plan.grid[1] * plan.splits
    together = min(plan.resident, -(-tiles // chip.sms))
    slow = max(1.0, LATENCY / (together * (plan.stages - 1) * weights))
    waves = -(-tiles // (chip.sms * plan.resident))
    starts = waves * (1.5 if plan.splits > 1 else 1.0) + (2.0 if plan.ready else 0.0)
    return -(-tiles // chip.sms) * block * slow + LATENCY * starts
