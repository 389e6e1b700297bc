"""One step's view of the KV cache, as a model's forward sees it (types.KVView)."""

from __future__ import annotations

import numpy as np
import torch

from pitstop.kv.store import KVStore
from pitstop.ops import attention, rope
from pitstop.types import AttentionSpec, StepPlan


class StepView:
    """Rotates, appends, seals, attends, for the spans of one plan. Its index tensors live in buffers of fixed address.

    max_rows and max_pages bound one step's token rows and the sum of its requests' sealed segments.
    """

    def __init__(self, store: KVStore, max_rows: int, max_pages: int, device: str) -> None:
        self._store = store
        self._device = device
        shapes = {"positions": (max_rows,), "items": (max_rows, 6), "table": (max_pages,)}
        self._host = {name: np.zeros(shape, np.int32) for name, shape in shapes.items()}
        # On the CPU these are the same memory: filling one is filling the other.
        self._buffers = {name: torch.from_numpy(values).to(device) for name, values in self._host.items()}
        self.positions = self._items = torch.empty(0, dtype=torch.int32)

    def load(self, plan: StepPlan) -> None:
        """Make this the view of `plan`."""
        positions: list[int] = []
        items: list[tuple[int, ...]] = []
        table: list[int] = []
        for span in plan.spans:
            first = len(positions)
            items += [(first + p.row, p.count, p.start, p.tail, p.seal, len(table)) for p in span.pieces]
            positions += range(span.start, span.start + span.count)
            table += span.pages
        self.positions = self._fill("positions", positions)
        self._items = self._fill("items", items)
        self._fill("table", table)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        """See types.KVView."""
        store = self._store
        codec, tails, pages, table = store.codec, store.tails[layer], store.pages[layer], self._buffers["table"]
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
        out = codec.attend(q, tails, pages, self._items, table, spec)
        return rope.hadamard(out) if codec.rotated == "both" else out

    def _fill(self, name: str, values: list) -> torch.Tensor:
        count = len(values)
        if count:
            self._host[name][:count] = values
        buffer = self._buffers[name][:count]
        if buffer.is_cuda:
            buffer.copy_(torch.from_numpy(self._host[name][:count]))
        return buffer
