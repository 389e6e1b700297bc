"""Intervals against published values, and against what they promise: how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pitstop.stats.intervals import needed_without_miss, percentile_interval, rank_percentile, share_at_least, wilson_interval


def test_a_rank_percentile_is_a_value_and_infinity_is_one() -> None:
    values = [3.0, 1.0, 2.0, math.inf]
    assert [rank_percentile(values, p) for p in (0, 25, 26, 50, 75, 76, 100)] == [1.0, 1.0, 2.0, 2.0, 3.0, math.inf, math.inf]
    assert rank_percentile(range(1, 101), 7) == 7  # not 8, as 0.07 · 100 would round up to
    assert rank_percentile(range(1, 101), 95) == 95


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_newcombe_published(hits: int, n: int, low: float, high: float) -> None:
    """Newcombe 1998, table I, method 3."""
    assert wilson_interval(hits, n) == pytest.approx((low, high), abs=5e-5)


def test_share_at_least_known_values() -> None:
    assert share_at_least(6000, 6000) == pytest.approx(0.05 ** (1 / 6000), rel=1e-9)
    assert share_at_least(1, 1) == pytest.approx(0.05)
    assert share_at_least(0, 10) == 0
    assert share_at_least(19, 20, 0.975) == pytest.approx(0.7513, abs=5e-5)  # Clopper and Pearson's two-sided 95 % interval of 19/20


def test_trials_needed() -> None:
    n = needed_without_miss(0.9995)
    assert n == 5990
    assert share_at_least(n, n) >= 0.9995 > share_at_least(n - 1, n - 1)


def test_percentile_interval_ranks() -> None:
    """The median of ten: P[B <= 1] = 11/1024 is the last below 2.5 %, so from the second to the ninth value (Conover 1999)."""
    assert percentile_interval(range(1, 11), 50) == (2, 9)
    low, high = percentile_interval(range(1, 21), 95)
    assert (low, high) == (17, math.inf)  # twenty values hold no upper end: 1 - 0.95^20 = 0.64


@pytest.mark.parametrize("percent", [50, 95, 99])
def test_percentile_intervals_hold_the_truth_as_often_as_they_say(percent: float) -> None:
    draws = np.random.default_rng(3).exponential(size=(2000, 400))
    truth = -math.log(1 - percent / 100)
    held = np.mean([low <= truth <= high for low, high in (percentile_interval(row, percent) for row in draws)])
    assert 0.94 <= held <= 0.995


def test_large_samples_do_not_underflow() -> None:
    low, high = percentile_interval(np.arange(100_000), 95)
    assert 94_800 < low < 95_000 < high < 95_200


@pytest.mark.parametrize(
    "call",
    [
        lambda: rank_percentile([], 50),
        lambda: rank_percentile([math.nan], 50),
        lambda: rank_percentile([1], 101),
        lambda: percentile_interval([1], 100),
        lambda: percentile_interval([1], 50, 1),
        lambda: wilson_interval(2, 1),
        lambda: share_at_least(0, 0),
        lambda: needed_without_miss(1),
    ],
)
def test_bad_input(call) -> None:
    with pytest.raises(ValueError, match=r"percent|NaN|share|confidence"):
        call()
