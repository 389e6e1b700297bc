"""How the attention kernel is launched on a GPU: chosen for each launch, pure arithmetic, explained in words. Imports no torch.

Bits do not depend on a plan (triton_kernels.py): whatever is chosen here changes speed only. Therefore the number of warps, which
decides in which order a tile's rows are added up, is one of the chip and the head, not of the launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pitstop.ops.attention.layout import Layout
from pitstop.ops.chip import Chip, resident_blocks
from pitstop.types import SEGMENT

GROUP = 8
"""Segments that are merged with each other first, then with the other groups."""

SHARES = (0, 64, 32, 16, 8, 1)
"""Segments that a block reads; 0: all that its rows see."""

HEAD_DIMS = (64, 80, 96, 128, 256)
BITS = (4, 8, 16)


class Heads(NamedTuple):
    """What a layer's attention looks like: `share` query heads have a KV head in common."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def share(self) -> int:
        return self.heads // self.kv_heads

    @property
    def padded(self) -> int:
        """head_dim as tiles have it: a power of two."""
        return 1 << (self.head_dim - 1).bit_length()


class Span(NamedTuple):
    """Query rows of one stream inside one segment: `rows` of them, the last of which sees `length` tokens."""

    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """columns: query vectors in a tile (`rows` rows times the heads that share a KV head, and padding). segments: that one block reads,
    a multiple of GROUP or 1; 0: all that its rows see. stages: tiles of keys and values that are on their way while others are worked on.
    turn: see triton_kernels.py. shared: bytes a block, registers: a thread, both at most; resident: blocks an SM; blocks: in the grid."""

    columns: int
    rows: int
    warps: int
    stages: int
    turn: bool
    segments: int
    blocks: int
    resident: int
    shared: int
    registers: int
    why: tuple[str, ...]


class Unit(NamedTuple):
    """What one block per KV head does: `count` query rows from `row` on, at positions from `start` on, over the segments [first, end) of
    what they see. slot: where its parts go, one for each group that it touches; -1: it has all, and writes the answer."""

    row: int
    count: int
    start: int
    tail: int
    table: int
    first: int
    end: int
    slot: int


class Merge(NamedTuple):
    """A row whose work was shared: its place `within` its tile, its first slot, and the segments or groups [first, end) there."""

    row: int
    within: int
    slot: int
    first: int
    end: int


class Schedule(NamedTuple):
    """units: [n, 8], each a Unit. merges: [m, 5], each a Merge. slots: of parts. per_group: parts of a group."""

    units: np.ndarray
    merges: np.ndarray
    slots: int
    per_group: int


class Sizes(NamedTuple):
    """What a launch has room for: units, merges, and slots of parts."""

    units: int
    merges: int
    slots: int


def refuse(heads: Heads, layout: Layout) -> str | None:
    """Why the kernel does not take this, or None."""
    if heads.head_dim not in HEAD_DIMS:
        return f"head_dim {heads.head_dim} is none of {', '.join(map(str, HEAD_DIMS))}"
    if heads.share > MOST_COLUMNS:
        return f"{heads.share} query heads for one KV head are more than {MOST_COLUMNS}"
    for name, plane in (("keys", layout.keys), ("values", layout.values)):
        if plane.coding != "absolute":
            return f"{name} are differences from token to token"
        for bits in {plane.bits, layout.lead or plane.bits}:
            if bits not in BITS:
                return f"{name} of {bits} bits; it reads {', '.join(map(str, BITS))}"
            if name == "values" and heads.head_dim % plane.with_bits(bits).block:
                return f"values of {bits} bits with head_dim {heads.head_dim}"
    return None


MOST_COLUMNS = 32
"""With 64, three accumulators of 128 channels pass the registers (LOG.md, 2026-11-30)."""

WARPS = 8
"""Of every block: the order of sums depends on it."""


def turned(layout: Layout) -> bool:
    """Whether a tile of codes is turned after it was made numbers: then loads are 16 bytes wide, and fewer banks conflict."""
    return min(layout.keys.bits, layout.values.bits) < 16


def columns_for(spans: Sequence[Span], heads: Heads) -> int:
    """The least tile that holds all query vectors of the largest span, up to the largest tile."""
    return 16 if max(span.rows for span in spans) * heads.share <= 16 else MOST_COLUMNS


def most_columns(heads: Heads, layout: Layout, chip: Chip) -> int:
    """Beyond them registers spill: accumulators grow with columns times head_dim; on sm_80 8-bit codes become numbers there, too."""
    widened = max(layout.keys.bits, layout.values.bits) == 8 and chip.arch < 90
    return max(16, min(MOST_COLUMNS, (2048 if widened else 4096) // heads.padded))


def most_stages(heads: Heads, layout: Layout) -> int:
    """8-bit tiles wait in registers, of which there are enough for one; tiles of 256 channels fill shared memory by themselves."""
    if heads.padded > 128:
        return 0
    return 1 if max(layout.keys.bits, layout.values.bits) == 8 else 3


def thread_registers(columns: int, heads: Heads, layout: Layout, chip: Chip) -> int:
    """Of a thread, at most: on sm_90 the tensor cores read 16-bit tiles from shared memory, else registers hold them; a head that does not
    fill its tile has masks, too."""
    if chip.arch < 90 or columns > 16 or heads.padded > 128 or turned(layout):
        return 255
    return 128 if heads.head_dim == heads.padded else 136


def tile_bytes(layout: Layout, heads: Heads) -> int:
    """Of the keys' and the values' tile as they are stored."""
    return SEGMENT * heads.padded * (layout.keys.bits + layout.values.bits) // 8


def shared_bytes(columns: int, stages: int, heads: Heads, layout: Layout, chip: Chip) -> int:
    """Of a block, at most. Tiles on their way, of 16 bits one more on sm_90, where the tensor cores read them there; codes as numbers;
    queries; weights, or the answer on its way out."""
    total = columns * (2 * heads.padded + max(4 * heads.padded, 2 * SEGMENT)) + 8 * stages
    for plane in (layout.keys, layout.values):
        stored = SEGMENT * heads.padded * plane.bits // 8
        if plane.bits == 16:
            total += stored * max(1, stages + (1 if chip.arch >= 90 and stages else 0))
        else:
            total += stored * stages + 2 * SEGMENT * heads.padded
    return total


def plan(spans: Sequence[Span], heads: Heads, layout: Layout, chip: Chip, shares: Sequence[int] = SHARES) -> Plan | str:
    """The plan for one launch, or why there is none. `spans` must not be empty. shares: what a block may read."""
    if reason := refuse(heads, layout):
        return reason
    why = []
    columns, most = columns_for(spans, heads), most_columns(heads, layout, chip)
    if columns > most:
        why.append(f"not {columns} columns, registers would spill")
        columns = most
    if columns < heads.share:
        return f"{heads.share} query heads for one KV head are more than the {columns} columns of head_dim {heads.head_dim}"
    fitting = [
        stages
        for stages in range(most_stages(heads, layout) + 1)
        if shared_bytes(columns, stages, heads, layout, chip) <= chip.shared_block
    ]
    if not fitting:
        return f"the tiles of head_dim {heads.head_dim} pass the {chip.shared_block} bytes of shared memory"
    rows, largest = columns // heads.share, max(span.rows for span in spans)
    used = heads.share * min(rows, largest)
    why.append(f"{columns} columns: {heads.share} heads times {min(rows, largest)} of {largest} rows, {columns - used} idle")
    registers = thread_registers(columns, heads, layout, chip)
    stages, places = _stages(fitting, columns, registers, heads, layout, chip)
    shared = shared_bytes(columns, stages, heads, layout, chip)
    waiting = places * stages * tile_bytes(layout, heads) >> 10
    why.append(f"{stages} stages: {shared} bytes and {places} blocks of {WARPS} warps an SM, {waiting} KB on their way")
    segments, blocks, text = _segments(spans, rows, heads, chip.sms * places, shares)
    why.append(text)
    return Plan(columns, rows, WARPS, stages, turned(layout), segments, blocks, places, shared, registers, tuple(why))


def fixed(spans: Sequence[Span], heads: Heads, layout: Layout, chip: Chip) -> Plan | str:
    """The same kernel with one tile for all steps: 32 columns, 1 stage, no row shared, codes turned as they are loaded. A baseline."""
    if reason := refuse(heads, layout):
        return reason
    columns = max(32, heads.share)
    rows = columns // heads.share
    shared = shared_bytes(columns, 1, heads, layout, chip)
    blocks = sum(-(-span.rows // rows) for span in spans) * heads.kv_heads
    return Plan(columns, rows, WARPS, 1, False, 0, blocks, resident_blocks(chip, WARPS, 255, shared), shared, 255, ("fixed",))


def _stages(fitting: Sequence[int], columns: int, registers: int, heads: Heads, layout: Layout, chip: Chip) -> tuple[int, int]:
    """Of those that fit, the stages that keep the most bytes on their way to an SM, with the blocks an SM holds. Fewer stages if equal."""
    places = {stages: resident_blocks(chip, WARPS, registers, shared_bytes(columns, stages, heads, layout, chip)) for stages in fitting}
    best = max(fitting, key=lambda stages: (places[stages] * stages, places[stages], -stages))
    return best, max(1, places[best])


def _segments(spans: Sequence[Span], rows: int, heads: Heads, places: int, shares: Sequence[int]) -> tuple[int, int, str]:
    """Segments a block, blocks in the grid, and the reason: the least time, counted in segments that one place reads one after the
    other."""
    seen = [(-(-span.length // SEGMENT), -(-span.rows // rows) * heads.kv_heads) for span in spans]  # segments, blocks that see them
    longest = max(length for length, _ in seen)
    best = None
    for segments in shares:
        each = segments or longest
        if segments >= longest and segments:
            continue
        blocks = sum(-(-length // each) * tiles for length, tiles in seen)
        total = sum(length * tiles for length, tiles in seen)
        cost = max(-(-blocks // places) * (total / blocks + 0.5), min(each, longest) + 0.5)  # whole waves, or the longest block
        cost *= 1 + (0.0 if not segments else heads.share / 64 / min(segments, GROUP))  # parts written and read again
        if best is None or cost < best[0] * 0.98:
            best = cost, segments, blocks
    _, segments, blocks = best
    what = f"{segments} segments" if segments else f"all {longest} segments"
    return segments, blocks, f"{what} a block: {blocks} blocks for {places} places, {blocks / places:.1f} waves"


def schedule(items: Sequence[Sequence[int]] | np.ndarray, plan: Plan, window: int = -1) -> Schedule:
    """The work of a launch. items: as paged_attention takes them."""
    row, count, start, tail, _, table = np.asarray(items, np.int64).reshape(-1, 6).T
    item, tile = _repeated(-(-count // plan.rows))
    row, start, tail, table = row[item] + tile * plan.rows, start[item] + tile * plan.rows, tail[item], table[item]
    rows = np.minimum(plan.rows, count[item] - tile * plan.rows)
    first, end = seen(start, window)
    step, grain = _step(plan, end), _grain(plan)
    of, block = _repeated((end - 1) // step - first // step + 1)
    block += first[of] // step
    left, right = np.maximum(first[of], block * step), np.minimum(end[of], (block + 1) * step)
    shared = right - left < (end - first)[of]
    low, high = first // grain, -(-end // grain)
    slots = np.where((end - 1) // step > first // step, high - low, 0)
    slot = np.cumsum(slots) - slots
    parts = np.where(shared, slot[of] + left // grain - low[of], -1)
    units = np.stack([row[of], rows[of], start[of], tail[of], table[of], left, right, parts], axis=1)
    merged, within = _repeated(np.where(slots > 0, rows, 0))
    merges = np.stack([row[merged] + within, within, slot[merged], low[merged], high[merged]], axis=1)
    return Schedule(units, merges, int(slots.sum()), parts_of_a_group(plan))


def parts_of_a_group(plan: Plan) -> int:
    return GROUP // _grain(plan)


def needed(starts: np.ndarray, plan: Plan, window: int = -1) -> Sizes:
    """Of the schedule of streams that decode a token at each of these positions."""
    first, end = seen(starts, window)
    step, grain = _step(plan, end), _grain(plan)
    blocks = (end - 1) // step - first // step + 1
    slots = np.where(blocks > 1, -(-end // grain) - first // grain, 0)
    return Sizes(int(blocks.sum()), int((blocks > 1).sum()), int(slots.sum()))


def seen(starts: np.ndarray, window: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """The segments [first, end) that rows see of which the first is at each of these positions, in one segment all of them."""
    end = starts // SEGMENT + 1
    return np.minimum(np.maximum(starts - window + 1, 0) // SEGMENT, end - 1) if window >= 0 else np.zeros_like(end), end


def _step(plan: Plan, end: np.ndarray) -> int:
    """Segments of a block."""
    return plan.segments or int(end.max(initial=1))


def _grain(plan: Plan) -> int:
    """Segments of a part."""
    return 1 if plan.segments == 1 else GROUP


def _repeated(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each i, counts[i] times i; beside it 0, 1, … counts[i] - 1."""
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
