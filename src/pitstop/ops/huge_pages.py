"""Memory for weights, in pages of 2 MiB where the system has them.

A step reads all weights once. In pages of 4 KiB a core waits for an address to be looked up every 64 lines, and its prefetchers stop there.
"""

from __future__ import annotations

import contextlib
import mmap
import threading

import torch

PAGE = 2 << 20
CHUNK = 16 * PAGE
"""Asked of the system at once: a small model's matrices are smaller than a page."""
ALIGNMENT = 64


def zeros(size: int) -> torch.Tensor:
    """uint8 [size] of zeros in host memory, at an address that is a multiple of 64. It is given back with the last of its neighbours."""
    global _rest
    taken = -(-size // ALIGNMENT) * ALIGNMENT
    if taken > CHUNK:
        return _chunk(size)
    with _taking:
        if taken > len(_rest):
            _rest = _chunk(CHUNK)
        result, _rest = _rest[:size], _rest[taken:]
    return result


def _chunk(size: int) -> torch.Tensor:
    """uint8 [size], at the beginning of a page. What is not touched takes no memory."""
    memory = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    first = -whole.data_ptr() % PAGE
    return whole[first : first + size]


_rest = torch.empty(0, dtype=torch.uint8)
_taking = threading.Lock()  # models may be loaded side by side
