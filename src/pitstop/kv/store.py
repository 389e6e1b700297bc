"""The memory behind the cache: pages and tails of every layer, in buffers that never move."""

from __future__ import annotations

import torch

from pitstop.types import SEGMENT, Codec, KVShape


class KVStore:
    """pages: [layers, pages, page_bytes] uint8; tails: [layers, slots, kv_heads, 2, 128 * head_dim] of the codec's tail dtype."""

    def __init__(self, codec: Codec, shape: KVShape, pages: int, tails: int, device: str) -> None:
        self.codec = codec
        self.shape = shape
        self.pages = torch.empty(shape.layers, pages, codec.page_bytes(shape), dtype=torch.uint8, device=device)
        self.tails = torch.empty(shape.layers, tails, shape.kv_heads, 2, SEGMENT * shape.head_dim, dtype=codec.tail_dtype, device=device)

    def copy_tails(self, copies: list[tuple[int, int]]) -> None:
        """Copy tail slots (source, destination), in order, over all layers."""
        for source, destination in copies:
            self.tails[:, destination] = self.tails[:, source]
