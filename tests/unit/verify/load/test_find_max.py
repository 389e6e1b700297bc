"""The search for the highest rate, against servers that are a threshold."""

from __future__ import annotations

import pytest

from pitstop.verify.load.find_max import LOWEST, PRECISION, Probe, Search, hopeless
from pitstop.verify.load.records import Record
from pitstop.verify.slo import LoadLimits


def search_for(threshold: float, start: float) -> Search:
    search = Search(start, LoadLimits())
    while not search.ended:
        assert len(search.probes) < 40
        passed = search.rate <= threshold
        search.add(Probe(search.rate, passed, 100, 100 if passed else 50, [] if passed else ["p95 too high"]))
    return search


@pytest.mark.parametrize("start", [0.1, 1, 7.3, 100])
@pytest.mark.parametrize("threshold", [0.3, 2.0, 7.3, 55.5])
def test_finds_the_threshold(threshold: float, start: float) -> None:
    search = search_for(threshold, start)
    assert threshold / (1 + PRECISION) <= search.found <= threshold
    assert [probe.passed for probe in search.probes if probe.rate == search.found] == [True, True]
    assert "2 runs of 200 requests" in search.statement


def test_no_rate_at_all() -> None:
    search = search_for(LOWEST / 3, 1)
    assert search.found is None
    assert "no rate" in search.statement
    assert "p95 too high" in search.statement


def test_a_rate_that_passes_once_only_is_not_found() -> None:
    """What fails when it is confirmed is lowered until it passes."""
    search = Search(8, LoadLimits())
    seen: set[float] = set()
    while not search.ended:
        lucky = search.rate not in seen and search.rate <= 8
        seen.add(search.rate)
        passed = search.rate <= 6 or lucky
        search.add(Probe(search.rate, passed, 100, 100, [] if passed else ["slow"]))
    assert 6 / (1 + PRECISION) <= search.found <= 6


def test_the_statement_says_what_the_sample_proves() -> None:
    assert "proves 98.513% with 95 % confidence; to prove 99.950% takes 5990 requests without a miss" in search_for(2, 1).statement


def record(took: float, error: str = "") -> Record:
    return Record(number=0, kind="a", max_tokens=4, intended=1.0, sent=1.0, end=1.0 + took, error=error)


def test_a_run_is_stopped_only_when_it_must_fail() -> None:
    limits = LoadLimits(e2e_p95_ms=700, within_ms=1000, within_share=0.99)
    watch = hopeless(limits, 1000)  # ten may miss, and five more for luck; fifty may lag
    assert not any(watch(record(1.5)) for _ in range(15))
    assert watch(record(0.1, "timeout"))
    watch = hopeless(limits, 1000)
    assert not any(watch(record(0.8)) for _ in range(65))
    assert watch(record(0.8))
    watch = hopeless(limits, 1000)
    assert not any(watch(record(0.6)) for _ in range(5000))
