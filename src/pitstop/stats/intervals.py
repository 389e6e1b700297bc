"""How sure a measured share or percentile is. Every interval here takes the values for independent draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np


def rank_percentile(values: Sequence[float] | np.ndarray, percent: float) -> float:
    """The smallest value that at least `percent` % of the values do not exceed (type 1 of Hyndman and Fan 1996); inf is a value.

    So "95 % ended within the result" holds of the sample itself. Raises ValueError as `percentile` does.
    """
    ordered = _ordered(values)
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must lie in [0, 100], got {percent}")
    return float(ordered[_rank(ordered.size, percent) - 1])


def percentile_interval(values: Sequence[float] | np.ndarray, percent: float, confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free interval of a percentile between order statistics (David and Nagaraja 2003, 7.1).

    With B binomial(n, percent/100), the percentile lies below the rth smallest value with probability P[B >= r] at most: each end
    leaves out (1 - confidence)/2. An end that so few values cannot give is -inf or inf. Raises ValueError as `rank_percentile` does.
    """
    ordered = _ordered(values)
    if not 0 < percent < 100:
        raise ValueError(f"percent must lie inside (0, 100), got {percent}")
    _check_confidence(confidence)
    tail = (1 - confidence) / 2
    below = np.cumsum(_binomial(ordered.size, percent / 100))  # P[B <= r], r = 0 … n
    low = int(np.searchsorted(below, tail, side="right"))  # the largest r with P[B <= r - 1] <= tail
    high = int(np.searchsorted(below, 1 - tail)) + 1  # the smallest r with P[B <= r - 1] >= 1 - tail
    padded = np.concatenate(([-np.inf], ordered, [np.inf]))
    return float(padded[low]), float(padded[min(high, ordered.size + 1)])


def wilson_interval(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a share of which `hits` of n were seen (Wilson 1927). Raises ValueError when they are no share."""
    _check_share(hits, n, confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = hits / n, z * z / n
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / n + weight / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def share_at_least(hits: int, n: int, confidence: float = 0.95) -> float:
    """One-sided lower bound of a share, exact (Clopper and Pearson 1934): the p at which `hits` or more of n have chance 1 - confidence.

    For hits = n that is (1 - confidence)^(1/n). Raises ValueError when they are no share.
    """
    _check_share(hits, n, confidence)
    if hits == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _binomial(n, middle)[hits:].sum() < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def needed_without_miss(share: float, confidence: float = 0.95) -> int:
    """The fewest trials, all hits, that show a share of at least `share`: share^n <= 1 - confidence. Raises ValueError outside (0, 1)."""
    if not 0 < share < 1:
        raise ValueError(f"share must lie inside (0, 1), got {share}")
    _check_confidence(confidence)
    return math.ceil(math.log(1 - confidence) / math.log(share))


def _binomial(n: int, p: float) -> np.ndarray:
    """Chances of 0 … n hits in n trials, float64 [n + 1]; by ratios of neighbours in logarithms, so that large n do not underflow."""
    if p <= 0 or p >= 1:
        return np.eye(1, n + 1, 0 if p <= 0 else n)[0]
    hits = np.arange(1, n + 1)
    steps = np.log((n - hits + 1) / hits) + math.log(p) - math.log1p(-p)
    logs = n * math.log1p(-p) + np.concatenate(([0.0], np.cumsum(steps)))
    return np.exp(logs)


def _rank(n: int, percent: float) -> int:
    return max(1, math.ceil(round(n * percent / 100, 9)))  # 0.07 · 100 is 7.000000000000001


def _ordered(values: Sequence[float] | np.ndarray) -> np.ndarray:
    ordered = np.sort(np.asarray(values, np.float64))
    if not ordered.size:
        raise ValueError("percentile of no values")
    if np.isnan(ordered).any():
        raise ValueError("percentile of values with NaN")
    return ordered


def _check_share(hits: int, n: int, confidence: float) -> None:
    if n < 1 or not 0 <= hits <= n:
        raise ValueError(f"{hits} of {n} is no share")
    _check_confidence(confidence)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie inside (0, 1), got {confidence}")
