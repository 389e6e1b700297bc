"""One step's view of the KV cache, as a model's forward sees it (types.KVView)."""

from __future__ import annotations

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
        self._buffers = {
            "positions": torch.zeros(max_rows, dtype=torch.int32, device=device),
            "items": torch.zeros(max_rows, 6, dtype=torch.int32, device=device),
            "table": torch.zeros(max_pages, dtype=torch.int32, device=device),
        }
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
        tails, pages = store.tails[layer], store.pages[layer]
        if spec.rope is not None:
            cos, sin = spec.rope
            q = rope.rotate(q, self.positions, cos, sin, spec.interleaved)
            k = rope.rotate(k, self.positions, cos, sin, spec.interleaved)
        attention.append(k, v, tails, self._items)
        store.codec.encode(tails, pages, self._items)
        return store.codec.attend(q, tails, pages, self._items, self._buffers["table"], spec)

    def _fill(self, name: str, values: list) -> torch.Tensor:
        buffer = self._buffers[name][: len(values)]
        if values:
            buffer.copy_(torch.tensor(values, dtype=torch.int32))
        return buffer
