"""One step's view of the KV cache, as a model's forward sees it (types.KVView)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pitstop.kv.store import KVStore
from pitstop.ops import attention, rope
from pitstop.ops.attention.launches import Launches, SizedLaunch
from pitstop.ops.transfer import Mirror
from pitstop.types import AttentionSpec, StepPlan


class Room(NamedTuple):
    """What many steps fit that decode one row a stream: so many rows, and launches of attention."""

    rows: int
    launches: tuple[SizedLaunch, ...] | None


class StepView:
    """Rotates, appends, seals, attends, for the spans of one plan. Its index tensors live in buffers of fixed address.

    max_rows and max_pages bound one step's token rows and the sum of its requests' sealed segments. launches: of the store's codec.
    """

    def __init__(self, store: KVStore, max_rows: int, max_pages: int, device: str, launches: Launches | None = None) -> None:
        self._store = store
        self._launches = launches
        self._tokens = Mirror((max_rows,), device, torch.int64)
        self._positions = Mirror((max_rows,), device)
        self._rows = Mirror((max_rows, 6), device)
        self._table = Mirror((max_pages,), device)
        self._pages: list[int] = []  # what the table holds
        self._sent = torch.cuda.Event() if torch.device(device).type == "cuda" else None
        self.tokens = self._tokens.send(0)
        """Of the plan's rows, [rows] int64."""
        self.positions = self._positions.send(0)
        self._items = self._rows.send(0)

    def load(self, plan: StepPlan, room: Room | None = None) -> None:
        """Make this the view of `plan`, in a room that it fits if it is given one.

        What it leaves of the room are rows of token 0 at position 0, in a tail that is nobody's: the store must be padded.
        """
        if self._sent is not None:
            self._sent.synchronize()  # what was loaded last may still be on its way from where this goes
        tokens: list[int] = []
        positions: list[int] = []
        items: list[tuple[int, ...]] = []
        table: list[int] = []
        for span in plan.spans:
            first = len(positions)
            items += [(first + p.row, p.count, p.start, p.tail, p.seal, len(table)) for p in span.pieces]
            tokens += span.tokens
            positions += range(span.start, span.start + span.count)
            table += span.pages
        idle = range(len(positions), room.rows) if room is not None else ()
        items += [(row, 1, 0, self._store.nobodys, -1, 0) for row in idle]
        if plan.chosen is None:
            self.tokens = self._tokens.fill(tokens + [0] * len(idle))
        else:
            self.tokens = self._tokens.device[: len(positions) + len(idle)]
            self.tokens[: len(positions)].copy_(plan.chosen)
            self.tokens[len(positions) :].zero_()
        self.positions = self._positions.fill(positions + [0] * len(idle))
        self._items = self._rows.fill(items)
        if table != self._pages:
            self._table.fill(table)
            self._pages = table
        if self._launches is not None and items:
            self._launches.load(self._rows.host[: len(items)], room and room.launches)
        if self._sent is not None:
            self._sent.record()

    def room(self, plan: StepPlan, rows: int) -> Room:
        """For a plan that decodes one row a stream, `rows` of them at most; the same for many such plans."""
        starts = [span.start for span in plan.spans] + [0] * (rows - len(plan.spans))
        return Room(rows, self._launches.sized(starts) if self._launches is not None else None)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        """See types.KVView."""
        store = self._store
        codec, tails, pages, table = store.codec, store.tails[layer], store.pages[layer], self._table.device
        if spec.rope is not None:
            cos, sin = spec.rope
            q = rope.rotate(q, self.positions, cos, sin, spec.interleaved)
            k = rope.rotate(k, self.positions, cos, sin, spec.interleaved)
        if codec.rotated != "none":
            q, k = rope.hadamard(q), rope.hadamard(k)
        if codec.rotated == "both":
            v = rope.hadamard(v)
        attention.append(k, v, tails, self._items)
        codec.encode(tails, pages, self._items, table)
        launch = self._launches[spec.window] if self._launches is not None else None
        out = codec.attend(q, tails, pages, self._items, table, spec, launch)
        return rope.hadamard(out) if codec.rotated == "both" else out
