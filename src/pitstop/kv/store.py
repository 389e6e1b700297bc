"""The memory behind the cache: pages and tails of every layer, in buffers that never move."""

from __future__ import annotations

import torch

from pitstop.types import SEGMENT, Codec, KVShape


class KVStore:
    """pages: [layers, pages, page_bytes] uint8; tails: [layers, slots, kv_heads, 2, 128 * head_dim] of the codec's tail dtype.

    padded: with one slot more, `nobodys`, where rows that are nobody's may write.
    """

    def __init__(self, codec: Codec, shape: KVShape, pages: int, tails: int, device: str, padded: bool = False) -> None:
        self.codec = codec
        self.shape = shape
        self.nobodys = tails if padded else -1
        tails += padded
        self.pages = torch.empty(shape.layers, pages, codec.page_bytes(shape), dtype=torch.uint8, device=device)
        self.tails = torch.empty(shape.layers, tails, shape.kv_heads, 2, SEGMENT * shape.head_dim, dtype=codec.tail_dtype, device=device)

    def touched_bytes(self, pages: int, tails: int) -> int:
        """Bytes of the process that the first `pages` pages and `tails` tails hold: the system hands memory out at its first write.

        0 on an accelerator, whose memory is no part of the process's.
        """
        if self.pages.device.type != "cpu":
            return 0
        return sum(buffer[:, :count].numel() * buffer.itemsize for buffer, count in ((self.pages, pages), (self.tails, tails)))

    def copy_tails(self, copies: list[tuple[int, int]]) -> None:
        """Copy tail slots (source, destination), in order, over all layers."""
        for source, destination in copies:
            self.tails[:, destination] = self.tails[:, source]
