"""A step's attention on a GPU, planned once on the host: one launch for each window, shared by all layers that have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from pitstop.ops import dispatch, gpu
from pitstop.ops.attention.layout import Layout
from pitstop.ops.attention.plan import GROUP, Heads, Plan, Schedule, Sizes, Span, needed, parts_of_a_group, plan, schedule, seen
from pitstop.ops.attention.triton import Launch, prepare
from pitstop.ops.transfer import Mirror
from pitstop.types import SEGMENT

SHARES = (0, GROUP, 1)
"""Segments that a block of a sized launch reads: few choices, so that few differ."""


class SizedLaunch(NamedTuple):
    """A launch for a window, of a size that many steps fit."""

    window: int
    plan: Plan
    sizes: Sizes


class Launches:
    """`load` a step, then ask for its launches by window.

    A step that decodes one token a stream may be loaded into sized launches, whose plans and buffers stay: so what was captured once can be
    replayed for every step that has the same ones.
    """

    def __init__(self, layout: Layout, heads: Heads, windows: Iterable[int], device: torch.device) -> None:
        self._layout = layout
        self._heads = heads
        self._windows = sorted(set(windows) - {0})  # where nothing is seen nothing is launched
        self._device = device
        self._fixed: dict[SizedLaunch, _Fixed] = {}
        self._loaded: dict[int, Launch] = {}
        self._latest: dict[int, tuple[tuple[bytes, bytes], SizedLaunch]] = {}

    @staticmethod
    def usable(layout: Layout, heads: Heads, device: torch.device) -> bool:
        """Whether these kernels are what attends there."""
        if "triton" not in dispatch.active() or gpu.refuse(cache=torch.empty(0, device=device)):
            return False
        plans = (plan([Span(rows, SEGMENT)], heads, layout, gpu.chip(device)) for rows in (1, SEGMENT))
        return all(isinstance(each, Plan) for each in plans)

    def sized(self, starts: Sequence[int]) -> tuple[SizedLaunch, ...]:
        """For streams that decode a token at each of these positions: the plan that suits them, and twice the work of it at most."""
        return tuple(self._sized(np.array(starts), window) for window in self._windows)

    def load(self, items: np.ndarray, sized: tuple[SizedLaunch, ...] | None = None) -> None:
        """items [n, 6] int32: as paged_attention takes them. Raises ValueError where they do not fit."""
        if sized is None:
            chosen = self._planned([Span(count, start + count) for _, count, start, _, _, _ in items.tolist()])
            self._loaded = {window: prepare(chosen, schedule(items, chosen, window), self._device) for window in self._windows}
            return
        for one in sized:
            if one not in self._fixed:
                self._fixed[one] = _Fixed(one, self._device)
            self._loaded[one.window] = self._fixed[one].fill(schedule(items, one.plan, one.window))

    def __getitem__(self, window: int) -> Launch | None:
        return self._loaded.get(window)

    def _sized(self, starts: np.ndarray, window: int) -> SizedLaunch:
        """Steps within the same segments have the same, so the latest is kept: planning takes as long as filling."""
        first, end = seen(starts, window)
        within = first.tobytes(), end.tobytes()
        if self._latest.get(window, (None,))[0] != within:
            chosen = self._planned([Span(1, count) for count in ((end - first) * SEGMENT).tolist()], SHARES)
            units, _, slots = needed(starts, chosen, window)
            rows, shared = len(starts), chosen.segments > 0
            sizes = Sizes(rows * _rounded(units, rows), rows * shared, rows * _rounded(slots, rows) * shared)
            self._latest[window] = within, SizedLaunch(window, chosen, sizes)
        return self._latest[window][1]

    def _planned(self, spans: list[Span], *shares: Sequence[int]) -> Plan:
        chosen = plan(spans, self._heads, self._layout, gpu.chip(self._device), *shares)
        assert isinstance(chosen, Plan), chosen
        return replace(chosen, blocks=0, why=())  # what differs from step to step though the launch does not


def _rounded(count: int, rows: int) -> int:
    """Of each row on average, as a power of two."""
    return 1 << (max(-(-count // rows), 1) - 1).bit_length()


class _Fixed:
    """The buffers of a sized launch. What a step leaves of it is filled with units and merges that touch nothing."""

    def __init__(self, sized: SizedLaunch, device: torch.device) -> None:
        self._sizes = sizes = sized.sizes
        self._mirror = Mirror((sizes.units + sizes.merges, 8), device)
        rows = self._mirror.device
        self._launch = Launch(sized.plan, rows[: sizes.units], rows[sizes.units :], sizes.slots, parts_of_a_group(sized.plan))

    def fill(self, work: Schedule) -> Launch:
        count = Sizes(len(work.units), len(work.merges), work.slots)
        if any(need > there for need, there in zip(count, self._sizes, strict=True)):
            raise ValueError(f"a step that needs {count} does not fit a launch that has {self._sizes}")
        units, merges = np.split(self._mirror.host, [self._sizes.units])
        units[:] = IDLE_UNIT
        units[: count.units] = work.units
        merges[:] = IDLE_MERGE
        merges[: count.merges, : work.merges.shape[1]] = work.merges
        self._mirror.send(len(self._mirror.host))
        return self._launch


IDLE_UNIT = (0, 0, 0, 0, 0, 0, 0, -1)
"""No rows, no segments, and no slot."""

IDLE_MERGE = (-1, 0, 0, 0, 0, 0, 0, 0)
"""A row that is none."""
