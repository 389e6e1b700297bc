"""Sealed segments stored as the tails are: raw16 (fp16) to serve with, raw32 (fp32) to compare with references."""

from __future__ import annotations

import torch

from pitstop.ops import attention
from pitstop.types import SEGMENT, AttentionSpec, KVShape


class Raw:
    """A page is a tail's bytes: [kv_heads, 2, 128 * head_dim], keys transposed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tail_dtype = {"raw16": torch.float16, "raw32": torch.float32}[name]

    def supports(self, shape: KVShape, device: str) -> str | None:
        return None

    def page_bytes(self, shape: KVShape) -> int:
        return shape.kv_heads * 2 * SEGMENT * shape.head_dim * self.tail_dtype.itemsize

    def encode(self, tails: torch.Tensor, pages: torch.Tensor, items: torch.Tensor) -> None:
        attention.seal_raw(tails, pages, items)

    def decode(self, page: torch.Tensor, shape: KVShape) -> tuple[torch.Tensor, torch.Tensor]:
        stored = page.view(self.tail_dtype).view(shape.kv_heads, 2, -1).float()
        keys = stored[:, 0].view(shape.kv_heads, shape.head_dim, SEGMENT).transpose(1, 2)
        return keys, stored[:, 1].view(shape.kv_heads, SEGMENT, shape.head_dim)

    def attend(
        self,
        q: torch.Tensor,
        tails: torch.Tensor,
        pages: torch.Tensor,
        items: torch.Tensor,
        table: torch.Tensor,
        spec: AttentionSpec,
    ) -> torch.Tensor:
        return attention.paged_attention(q, tails, pages, items, table, spec.scale, spec.softcap, spec.window)
