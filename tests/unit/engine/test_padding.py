"""Padding is removed at the door, whatever its pattern (MISSION R7)."""

from __future__ import annotations

import itertools

import pytest

from pitstop.engine.padding import unpad
from pitstop.errors import InvalidRequest


@pytest.mark.parametrize("width", range(1, 9))
def test_every_pattern_of_a_small_batch(width: int) -> None:
    """All 2^width masks of one row: contiguous ones give their tokens, holes and all-padding rows are refused by name."""
    for mask in itertools.product((0, 1), repeat=width):
        row = list(range(10, 10 + width))
        kept = [token for token, keep in zip(row, mask, strict=True) if keep]
        contiguous = kept and kept == list(range(kept[0], kept[0] + len(kept)))
        if contiguous:
            assert unpad([row], [mask]) == [kept]
        else:
            with pytest.raises(InvalidRequest, match=r"attention_mask\[0\]"):
                unpad([row], [mask])


def test_shapes_and_values_are_checked() -> None:
    with pytest.raises(InvalidRequest, match="shape"):
        unpad([[1, 2]], [[1]])
    with pytest.raises(InvalidRequest, match="only 0 and 1"):
        unpad([[1, 2]], [[1, 2]])
    assert unpad([[1, 2], [3]], None) == [[1, 2], [3]]
