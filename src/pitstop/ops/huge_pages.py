"""Memory for weights, in pages of 2 MiB where the system has them.

A step reads all weights once. In pages of 4 KiB a core waits for an address to be looked up every 64 lines, and its prefetchers stop there.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from pathlib import Path

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
    whole = _asked(mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    first = -whole.data_ptr() % PAGE
    return whole[first : first + size]


def mapped(path: Path) -> torch.Tensor:
    """uint8: the file, whose memory everybody shares who maps it. What is written there is this process's own, and not the file's.

    Raises OSError, and ValueError for an empty file. Some file systems have large pages (ext4 and XFS of recent Linux).
    """
    with path.open("rb") as file:
        return _asked(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))


def _asked(memory: mmap.mmap) -> torch.Tensor:
    """uint8, for which large pages have been asked."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


_rest = torch.empty(0, dtype=torch.uint8)
_taking = threading.Lock()  # models may be loaded side by side
