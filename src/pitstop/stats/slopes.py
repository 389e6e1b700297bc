"""How fast something grows, and how sure that is, when neighbouring samples resemble each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

FEWEST = 8
"""Samples below which no autocorrelation can be estimated."""


class Slope(NamedTuple):
    """A straight line's slope and the ends of its confidence interval, in units of y for one unit of x; the line goes through `middle`."""

    value: float
    low: float
    high: float
    middle: tuple[float, float]  # the means of x and y

    def at(self, x: float) -> float:
        return self.middle[1] + self.value * (x - self.middle[0])


def slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, confidence: float = 0.95) -> Slope:
    """The slope, with the narrower of two intervals, each around its own estimate, that allow for neighbours that resemble each other.

    Residuals e_i = r e_(i-1) + noise: least squares, where the n samples count as m = n (1 - r)/(1 + r) independent ones, both in the
    variance of the residuals, Σe²/(m - 2), and in Student's t (Santer et al. 2000, J. Geophys. Res. 105, 7337). r is the residuals' lag-1
    autocorrelation, freed of its bias under a trend, E r̂ ≈ r - (2 + 4r)/n (Marriott and Pope 1954), and not below 0; m is not below 3.

    A random walk, of which that knows next to nothing: least squares through the origin of the increments of y along those of x, with n - 2
    degrees of freedom. It holds for every r, as increments vary the more for noise that comes and goes.

    Simulated, the 95 % interval covers the slope in 92 to 96 % of 2,000 series of 48 samples for r up to 0.9, and in 83 % of random walks.

    Raises ValueError for fewer than FEWEST samples, unequal lengths, values that are not finite, or x all equal.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"a slope needs as many x as y: {list(x.shape)} and {list(y.shape)}")
    if x.size < FEWEST:
        raise ValueError(f"a slope needs {FEWEST} samples, there are {x.size}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("a slope of values that are not finite")
    centred = x - x.mean()
    if not centred.any():
        raise ValueError("a slope along x that are all equal")
    middle = float(x.mean()), float(y.mean())
    intervals = _line(centred, y - y.mean(), confidence), _walk(np.diff(x), np.diff(y), confidence)
    value, half = min(intervals, key=lambda interval: interval[1])
    return Slope(value, value - half, value + half, middle)


def _line(x: np.ndarray, y: np.ndarray, confidence: float) -> tuple[float, float]:
    """Slope of centred samples, and half of its interval."""
    spread = float(x @ x)
    value = float(x @ y) / spread
    residuals = y - value * x
    squares = float(residuals @ residuals)
    independent = _independent(residuals, squares)
    return value, t_quantile((1 + confidence) / 2, independent - 2) * math.sqrt(squares / (independent - 2) / spread)


def _walk(dx: np.ndarray, dy: np.ndarray, confidence: float) -> tuple[float, float]:
    """The same of increments."""
    spread, freedom = float(dx @ dx), dx.size - 1
    value = float(dx @ dy) / spread
    rest = dy - value * dx
    return value, t_quantile((1 + confidence) / 2, freedom) * math.sqrt(float(rest @ rest) / freedom / spread)


def _independent(residuals: np.ndarray, squares: float) -> float:
    n = residuals.size
    estimate = float(residuals[1:] @ residuals[:-1]) / squares if squares else 0.0
    r = min(max((n * estimate + 2) / (n - 4), 0.0), 1.0)
    return max(n * (1 - r) / (1 + r), 3.0)


def t_quantile(probability: float, freedom: float) -> float:
    """Student's t that `probability` lies below, for `freedom` >= 1 degrees of freedom; the normal's beyond a million.

    By t = √freedom · tan a, which turns the density into cos(a)^(freedom - 1): its integral over a is read backwards, to 1e-5 of t.
    """
    if not 0 < probability < 1 or not freedom >= 1:
        raise ValueError(f"no t for probability {probability} and {freedom} degrees of freedom")
    if freedom > 1e6:
        return NormalDist().inv_cdf(probability)
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    angles = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    below = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    return math.sqrt(freedom) * math.tan(np.interp(2 * probability - 1, below / below[-1], angles))
