"""Percentiles of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentile(values: Sequence[float] | np.ndarray, percent: float) -> float:
    """The value below which `percent` % of the values lie, between neighbours by straight line (type 7 of Hyndman and Fan 1996).

    Raises ValueError for no values, a NaN among them, or a percent outside [0, 100].
    """
    values = np.asarray(values, np.float64)
    if not values.size:
        raise ValueError("percentile of no values")
    if np.isnan(values).any():
        raise ValueError("percentile of values with NaN")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must lie in [0, 100], got {percent}")
    return float(np.percentile(values, percent))
