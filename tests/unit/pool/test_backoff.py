"""How long a crash loop waits. The clock is the argument."""

from __future__ import annotations

from pitstop.pool.backoff import Backoff


def test_waits_double_up_to_half_a_minute_and_begin_anew_after_a_healthy_minute():
    backoff = Backoff(0.5)
    assert [backoff.died(served=59.9) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.deaths == 8
    assert [backoff.died(served) for served in (60.0, 0.0, 3600.0)] == [0.5, 1.0, 0.5]
    assert backoff.deaths == 1


def test_a_loop_that_never_ends_does_not_overflow():
    backoff = Backoff(0.5)
    assert {backoff.died(0.0) for _ in range(5000)} == {0.5, 1, 2, 4, 8, 16, 30}
