"""Figures against limits."""

from __future__ import annotations

import math

import numpy as np

from pitstop.stats.intervals import needed_without_miss, percentile_interval, rank_percentile, share_at_least
from pitstop.verify.load.figures import Figures
from pitstop.verify.load.headroom import refusal_in_run
from pitstop.verify.load.session import Measured
from pitstop.verify.outcome import Check
from pitstop.verify.slo import LoadLimits

CACHED_SHARE = 0.1
"""Of the prompt tokens that may come from a prefix cache: prompts differ from their beginning on."""


def check_client(measured: Measured) -> Check:
    """Whether the client was fast enough to judge at all."""
    headroom = measured.headroom
    reason = refusal_in_run(headroom, measured.records, measured.summary)
    if not reason:
        reason = f"alone, at a null server and twice the load, the client takes {headroom.p99:.1f} ms at p99"
        return Check(name="load.client", passed=True, reason=reason, value=headroom.p99, limit=headroom.needs.allowed)
    return Check(name="load.client", passed=False, reason=reason, value=headroom.p99, limit=headroom.needs.allowed)


def check_limits(figures: Figures, limits: LoadLimits) -> list[Check]:
    """One check a stated limit, and that prompts were not cached."""
    checks = [_cached(figures)]
    for name, values, limit in (
        ("e2e_p95_ms", figures.e2e, limits.e2e_p95_ms),
        ("ttft_p95_ms", figures.ttft, limits.ttft_p95_ms),
        ("itl_p95_ms", figures.itl, limits.itl_p95_ms),
    ):
        if limit is not None:
            checks.append(_percentile(name, values, limit))
    if limits.within_ms is not None and limits.within_share is not None:
        checks.append(_within(figures, limits.within_ms, limits.within_share))
    if limits.error_share is not None:
        checks.append(_errors(figures, limits.error_share))
    return checks


def _percentile(name: str, values: np.ndarray, limit: float) -> Check:
    if not values.size:
        return Check(name=f"load.{name}", passed=False, reason="nothing was measured", limit=limit)
    value = rank_percentile(values, 95)
    low, high = percentile_interval(values, 95)
    failed = int(np.isinf(values).sum())
    lost = f"; {failed} of {values.size} failed, and count as never ended" if failed else ""
    reason = f"p95 {show(value)} ms (95 % interval {show(low)} to {show(high)}) of at most {limit:g} ms{lost}"
    return Check(name=f"load.{name}", passed=value <= limit, reason=reason, value=value if math.isfinite(value) else None, limit=limit)


def _within(figures: Figures, within: float, share: float) -> Check:
    requests = len(figures.records)
    observed = figures.within / requests
    proven = share_at_least(figures.within, requests)
    reason = (
        f"{figures.within} of {requests} ended within {within:g} ms: {observed:.4%} of at least {share:.4%}; with 95 % confidence at "
        f"least {proven:.4%} of all would"
    )
    if proven < share < 1 and observed >= share:
        reason += f". This sample is too small to prove the limit: that takes {needed_without_miss(share)} requests without a miss"
    return Check(name="load.within_share", passed=observed >= share, reason=reason, value=observed, limit=share)


def _errors(figures: Figures, limit: float) -> Check:
    requests, errors = len(figures.records), figures.errors
    share = sum(errors.values()) / requests
    reason = f"{sum(errors.values())} of {requests} requests failed"
    if errors:
        example = next(record for record in figures.records if record.error)
        kinds = ", ".join(f"{count} × {kind}" for kind, count in errors.items())
        reason += f": {kinds}. Request {example.number}: {example.detail or example.error}"
    return Check(name="load.error_share", passed=share <= limit, reason=reason, value=share, limit=limit)


def _cached(figures: Figures) -> Check:
    silent = all(record.cached_tokens is None for record in figures.whole)
    share = figures.cached_share
    said = "the server does not say; prompts differ from their beginning on" if silent else f"{share:.1%} of the prompt tokens were cached"
    reason = f"{said}; a warm cache would make it another measurement"
    return Check(name="load.prefix_cache", passed=share <= CACHED_SHARE, reason=reason, value=share, limit=CACHED_SHARE)


def show(value: float) -> str:
    """Milliseconds for a reader: three digits, ∞ for never."""
    return "∞" if math.isinf(value) and value > 0 else "0" if math.isinf(value) else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
