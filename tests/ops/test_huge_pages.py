"""Memory for weights: zeros of one's own, in large pages where the system has them, given back with the last tensor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from pitstop.ops import huge_pages


def flags(tensor_address: int) -> str | None:
    """What the system says about the mapping around an address; None where nothing is mapped."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
            inside = low <= tensor_address < high
        elif inside and first == "VmFlags:":
            return line
    return None


def test_each_gets_zeros_of_its_own() -> None:
    sizes = [1, 63, 64, 1000, huge_pages.CHUNK - 64, huge_pages.CHUNK, huge_pages.CHUNK + 1, 5]
    made = []
    for number, size in enumerate(sizes, 1):
        tensor = huge_pages.zeros(size)
        assert (tensor.dtype, len(tensor), tensor.data_ptr() % huge_pages.ALIGNMENT) == (torch.uint8, size, 0)
        assert not tensor.any()
        made.append(tensor.fill_(number))
    assert all((tensor == number).all() for number, tensor in enumerate(made, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_pages_are_asked_for_and_given_back() -> None:
    kept = huge_pages.zeros(3 * huge_pages.CHUNK)
    address = kept.data_ptr() + huge_pages.CHUNK
    assert address % huge_pages.PAGE == 0
    if Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert "hg" in flags(address).split()
    part = kept[-1:]
    del kept
    assert flags(address) is not None
    del part
    assert flags(address) is None
