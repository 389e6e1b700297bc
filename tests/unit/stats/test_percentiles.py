"""Percentiles against a definition that sorts and interpolates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.stats import percentile

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def slow(values: list[float], percent: float) -> float:
    ordered, place = sorted(values), (len(values) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@given(NUMBERS, st.floats(0, 100))
def test_by_definition(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(slow(values, percent), rel=1e-12, abs=1e-6)


def test_known_values() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, p) for p in (0, 25, 50, 100)] == [1.0, 1.75, 2.5, 4.0]
    assert percentile(range(1001), 99.9) == pytest.approx(999.0, rel=1e-15)


@pytest.mark.parametrize(("values", "percent", "message"), [([], 50, "no values"), ([1.0, math.nan], 50, "NaN"), ([1.0], 101, "100")])
def test_bad_input(values: list[float], percent: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        percentile(values, percent)
