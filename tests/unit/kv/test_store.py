"""The memory behind the cache: what is given back goes, and nothing else does."""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

import pytest
import torch

from pitstop import codecs
from pitstop.kv.store import KVStore
from pitstop.types import KVShape

LAYERS, PAGES = 3, 40


def resident(tensor: torch.Tensor) -> int:
    """Bytes of memory that the mapping of the tensor has."""
    for block in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)[1:]:
        low, high = (int(end, 16) for end in block.split(maxsplit=1)[0].split("-"))
        if low <= tensor.data_ptr() < high:
            return 1024 * int(re.search(r"^Rss: +(\d+) kB", block, re.MULTILINE)[1])
    raise AssertionError("it is not mapped")


@pytest.mark.skipif(sys.platform != "linux", reason="how much is given back at once is the system's own affair")
@pytest.mark.parametrize("codec", ["raw16", "int8", "int4"])
def test_released_pages_leave_memory_and_their_neighbours_stay(codec: str) -> None:
    store = KVStore(codecs.get(codec), KVShape(LAYERS, 8, 64), PAGES, 1, "cpu")
    store.pages.copy_(torch.arange(store.pages.numel()).view(store.pages.shape))
    kept = store.pages.clone()
    released = [*range(20, 40), 3, 11, 12, 0]
    before = resident(store.pages)
    store.release(released)
    gone, size = before - resident(store.pages), store.touched_bytes(len(released), 0)
    runs = 4  # each loses what it shares of a system's page with a neighbour, at both ends, in each layer
    assert size - runs * LAYERS * 2 * mmap.PAGESIZE < gone <= size
    others = [page for page in range(PAGES) if page not in released]
    assert torch.equal(store.pages[:, others], kept[:, others])
    assert store.pages[:, 21].count_nonzero() == 0
    store.pages[:, released] = kept[:, released]
    assert torch.equal(store.pages, kept)


def test_a_pool_without_pages_has_none_to_give() -> None:
    store = KVStore(codecs.get("raw16"), KVShape(1, 1, 32), 0, 1, "cpu")
    store.release([])
    assert store.touched_bytes(0, 0) == 0
