"""What the op tests compare by: equality to the bit, of a row in any company and of all instruction sets."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pitstop.models import rope
from pitstop.ops import dispatch

BACKENDS = ("cpu", "ref")
ISAS = tuple(dispatch.native.available_isas()) if dispatch.native else ()


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to the bit: the sign of zero counts."""
    assert actual.shape == expected.shape
    different = actual.contiguous().view(torch.int32) != expected.contiguous().view(torch.int32)
    assert not different.any(), f"{int(different.sum())} of {different.numel()} values differ, first at {different.nonzero()[0].tolist()}"


def assert_rows_stand_alone(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> None:
    """function(*tensors) row by row has the same bits alone, in any company, in any place, and with one thread or two."""
    rows = len(tensors[0])
    dispatch.set_threads(1)
    alone = torch.cat([function(*(t[row : row + 1] for t in tensors)) for row in range(rows)])
    for threads in (1, 2):
        dispatch.set_threads(threads)
        for count in (2, 3, 17, rows):
            for first in {0, 1, rows - count} - {rows - count + 1}:
                part = function(*(t[first : first + count] for t in tensors))
                assert_same_bits(part, alone[first : first + count])
        assert_same_bits(function(*(t.flip(0) for t in tensors)), alone.flip(0))


def each_isa(function: Callable[[], torch.Tensor]) -> None:
    """All instruction sets of this machine give the same bits."""
    results = []
    for isa in ISAS:
        dispatch.native.set_isa(isa)
        results.append(function())
    for result in results[1:]:
        assert_same_bits(result, results[0])


def frequencies(dim: int, theta: float) -> torch.Tensor:
    """Of plain RoPE, [dim / 2] fp64."""
    return torch.from_numpy(rope.frequencies(dim, theta))
