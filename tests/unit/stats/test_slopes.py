"""Slopes: known values, and intervals that cover as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pitstop.stats.slopes import slope, t_quantile


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),  # tables of Student's t
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 10, 2.22814), (0.995, 5, 4.03214), (0.95, 30, 1.69726), (0.975, 1e7, 1.95996)],
)
def test_t_as_tabled(probability: float, freedom: float, expected: float):
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-5)
    assert t_quantile(1 - probability, freedom) == pytest.approx(-expected, rel=1e-5)


def test_a_straight_line_is_known_exactly():
    found = slope(range(10), [3.0 + 2 * i for i in range(10)])
    assert found[:3] == pytest.approx((2, 2, 2), abs=1e-12)
    assert found.at(20) == pytest.approx(43)
    assert slope(range(8), [5.0] * 8)[:3] == (0, 0, 0)


def test_independent_residuals_give_the_textbook_interval():
    """Residuals that alternate by pairs of opposite signs have r̂ < 0, so that all samples count."""
    x = np.arange(16.0)
    noise = np.tile([1.0, -1.0, -1.0, 1.0], 4)  # orthogonal to 1 and to x
    found = slope(x, 0.5 * x + noise)
    spread = ((x - x.mean()) ** 2).sum()
    r = (noise[1:] @ noise[:-1] / 16 * 16 + 2) / 12
    independent = 16 * (1 - max(r, 0)) / (1 + max(r, 0))
    half = t_quantile(0.975, independent - 2) * math.sqrt(16 / (independent - 2) / spread)
    assert found[:3] == pytest.approx((0.5, 0.5 - half, 0.5 + half))


def series(r: float, n: int, count: int) -> np.ndarray:
    """[count, n] of noise, each value r times the last and something new."""
    rng = np.random.default_rng(int(100 * r))
    noise = rng.standard_normal((count, n))
    values = np.empty_like(noise)
    values[:, 0] = noise[:, 0] / math.sqrt(1 - r * r) if r < 1 else noise[:, 0]
    for i in range(1, n):
        values[:, i] = r * values[:, i - 1] + noise[:, i]
    return values


@pytest.mark.parametrize(("r", "at_least"), [(0, 0.93), (0.5, 0.92), (0.8, 0.90), (0.9, 0.88), (1, 0.79)])
def test_the_interval_covers(r: float, at_least: float):
    """400 series each: what chance takes from the docstring's shares is at most 0.035."""
    hits = [found.low <= 0 <= found.high for found in (slope(range(48), values) for values in series(r, 48, 400))]
    assert at_least <= np.mean(hits) <= 0.99


def test_a_random_walk_is_known_by_its_steps():
    """Twenty steps up by 1, one down by 10 in between: their mean, and the textbook's interval of it."""
    y = np.concatenate([np.arange(11.0), np.arange(11.0)])
    found = slope(range(22), y)
    steps = np.diff(y)
    half = t_quantile(0.975, 20) * steps.std(ddof=1) / math.sqrt(21)
    assert found[:3] == pytest.approx((steps.mean(), steps.mean() - half, steps.mean() + half))


def test_neighbours_that_resemble_each_other_widen_it():
    widths = [np.median([found.high - found.low for found in (slope(range(48), v) for v in series(r, 48, 50))]) for r in (0, 0.8)]
    assert widths[1] > 4 * widths[0]


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (range(7), range(7), "needs 8 samples, there are 7"),
        (range(9), range(8), "as many x as y"),
        ([1.0] * 8, range(8), "all equal"),
        (range(8), [math.nan] * 8, "not finite"),
    ],
)
def test_nonsense_is_refused(x, y, why: str):
    with pytest.raises(ValueError, match=why):
        slope(x, y)
    with pytest.raises(ValueError, match="no t"):
        t_quantile(0.9, 0.5)
