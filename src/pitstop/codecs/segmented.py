"""What all codecs are: a layout of sealed segments, read by one attention arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pitstop.ops import attention
from pitstop.ops.attention import planes
from pitstop.ops.attention.layout import PARTS, Layout
from pitstop.types import AttentionSpec, KVShape


@dataclass(frozen=True, slots=True)
class Segmented:
    """See types.Codec."""

    name: str
    layout: Layout
    tail_dtype: torch.dtype = torch.float16
    rotated: bool = False

    @property
    def lead_pages(self) -> int:
        return self.layout.lead_pages

    def supports(self, shape: KVShape, device: str) -> str | None:
        dim = shape.head_dim
        if self.rotated and dim & (dim - 1):
            return f"its rotation needs a head dimension that is a power of two, not {dim}"
        bits = {plane.bits for plane in (self.layout.values, self.layout.first()[1]) if plane.bits < 16}
        block = 128 // min((part for width in bits for part in PARTS[width] if part in (2, 4)), default=128)
        return f"its codes lie in blocks of {block} channels, which do not divide a head dimension of {dim}" if dim % block else None

    def page_bytes(self, shape: KVShape) -> int:
        return self.layout.page_bytes(shape.kv_heads, shape.head_dim)

    def encode(self, tails: torch.Tensor, pages: torch.Tensor, items: torch.Tensor, table: torch.Tensor) -> None:
        attention.seal(tails, pages, items, table, self.layout)

    def decode(self, lead: torch.Tensor | None, page: torch.Tensor, shape: KVShape) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = planes.unseal(self.layout, lead, page, shape.kv_heads, shape.head_dim)
        return keys.transpose(1, 2).float(), values.float()

    def attend(
        self,
        q: torch.Tensor,
        tails: torch.Tensor,
        pages: torch.Tensor,
        items: torch.Tensor,
        table: torch.Tensor,
        spec: AttentionSpec,
    ) -> torch.Tensor:
        return attention.paged_attention(q, tails, pages, items, table, self.layout, spec.scale, spec.softcap, spec.window)
