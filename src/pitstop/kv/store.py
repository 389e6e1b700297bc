"""The memory behind the cache: pages and tails of every layer, in buffers that never move."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from itertools import groupby

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
        size, self._memory = codec.page_bytes(shape), None
        if device == "cpu":
            self._memory = mmap.mmap(-1, max(1, shape.layers * pages * size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.pages = torch.frombuffer(self._memory, dtype=torch.uint8)[: shape.layers * pages * size].view(shape.layers, pages, size)
        else:
            self.pages = torch.empty(shape.layers, pages, size, dtype=torch.uint8, device=device)
        self.tails = torch.empty(shape.layers, tails, shape.kv_heads, 2, SEGMENT * shape.head_dim, dtype=codec.tail_dtype, device=device)

    def touched_bytes(self, pages: int, tails: int) -> int:
        """Bytes of the process that the first `pages` pages and `tails` tails hold: the system hands memory out at its first write.

        0 on an accelerator, whose memory is no part of the process's.
        """
        if self.pages.device.type != "cpu":
            return 0
        return sum(buffer[:, :count].numel() * buffer.itemsize for buffer, count in ((self.pages, pages), (self.tails, tails)))

    def release(self, pages: Iterable[int]) -> None:
        """Give the memory of these pages back to the system: what they held is lost, and who writes them takes memory again."""
        if self._memory is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        layers, total, size = self.pages.shape
        for _, run in groupby(enumerate(sorted(pages)), lambda pair: pair[1] - pair[0]):  # neighbours together: system pages are smaller
            slots = [slot for _, slot in run]
            for layer in range(layers):
                start, end = (layer * total + slots[0]) * size, (layer * total + slots[-1] + 1) * size
                start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
                if start < end:
                    self._memory.madvise(mmap.MADV_DONTNEED, start, end - start)

    def copy_tails(self, copies: list[tuple[int, int]]) -> None:
        """Copy tail slots (source, destination), in order, over all layers."""
        for source, destination in copies:
            self.tails[:, destination] = self.tails[:, source]
