"""How fast the queue drains, and what that means for who is refused."""

from __future__ import annotations

import pytest

from pitstop.pool.drain import LONGEST, DrainRate


def busy(interval: float, departures: int, tokens: int = 100) -> tuple[DrainRate, float]:
    """A queue that lost one place each `interval` seconds, and the time now. Everybody had come at 0."""
    rate, now = DrainRate(), 0.0
    for _ in range(departures):
        now += interval
        rate.leave(now, 0.0, tokens)
    return rate, now


def test_rates_are_places_and_tokens_per_busy_second():
    rate, now = busy(0.1, 1000, tokens=50)
    assert rate.rates(now, now) == pytest.approx((10, 500), rel=0.04)


def test_an_empty_queue_does_not_slow_the_rate():
    rate, now = busy(0.1, 1000)
    later = now + 3600
    rate.leave(later + 0.1, later, 100)  # waited a tenth of a second, after an hour without anybody
    assert rate.rates(later + 0.1, later + 0.1)[0] == pytest.approx(10, rel=0.04)


def test_a_queue_that_stands_still_counts_at_once():
    rate, now = busy(0.1, 1000)
    assert rate.rates(now + 100, oldest=now)[0] < 3


def test_new_rates_replace_old_ones():
    rate, now = busy(0.1, 1000)
    for _ in range(60):
        now += 2.0
        rate.leave(now, 0.0, 100)
    assert rate.rates(now, now)[0] == pytest.approx(0.5, rel=0.4)


def test_retry_after_is_when_a_place_frees():
    assert DrainRate().retry_after(7.2, 0.1, 7.2, now=5.0) == 8
    assert DrainRate().retry_after(0.01, 0.01, 1.0, now=5.0) == 1
    assert DrainRate().retry_after(1e9, 1.0, 1e9, now=5.0) == LONGEST


def test_a_crowd_is_told_one_place_after_the_other_round_the_queue():
    rate = DrainRate()
    told = [rate.retry_after(over=1.0, more=1.0, whole=4.0, now=5.0) for _ in range(10)]
    assert told == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    assert rate.retry_after(over=1.0, more=1.0, whole=4.0, now=100.0) == 1  # old promises are past
