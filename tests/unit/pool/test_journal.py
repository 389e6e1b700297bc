"""The journal's arithmetic."""

from __future__ import annotations

import pytest

from pitstop.pool.journal import Entry, Journal
from pitstop.pool.stream import Stream
from pitstop.types import Request, SamplingParams


def entry(name: str) -> Entry:
    return Entry(Request(id=name, prompt=[1], params=SamplingParams()), Stream([name], lambda stream: None))


def test_counts_follow_an_entry_through_its_life():
    journal = Journal()
    first, second = entry("a"), entry("b")
    journal.add(first)
    journal.add(second)
    journal.check()
    assert (journal.queued, journal.running, journal.waiting) == (2, 0, 2)
    journal.move(first, "running")
    journal.emit(first, [], 1.0)
    assert journal.waiting == 2  # no token yet
    journal.emit(first, [5, 6], 2.0)
    journal.emit(first, [7], 3.0)
    journal.move(first, "queued")  # preempted
    journal.move(first, "running")
    assert (journal.queued, journal.running, journal.waiting, first.emitted) == (1, 1, 1, [5, 6, 7])
    journal.end(first, "stop", 4.0)
    journal.end(second, "cancelled", 4.0)
    journal.check()
    assert (journal.queued, journal.running, journal.waiting, journal.accepted) == (0, 0, 0, 2)
    assert journal.finished == {"stop": 1, "cancelled": 1}


def test_nothing_ends_twice():
    journal = Journal()
    only = entry("a")
    journal.add(only)
    journal.end(only, "stop", 1.0)
    with pytest.raises(KeyError):
        journal.end(only, "error", 1.0)
    journal.check()


def test_check_notices_a_lost_entry():
    journal = Journal()
    journal.add(entry("a"))
    del journal.entries["a"]
    with pytest.raises(AssertionError):
        journal.check()


def test_retry_after_follows_the_rate_of_finishes():
    journal = Journal()
    assert journal.retry_after(0.0) == 1  # nothing is known yet
    for number in range(10):
        only = entry(str(number))
        journal.add(only)
        journal.end(only, "stop", float(number))  # one a second
    journal.encoding = 40
    assert journal.retry_after(10.0) == 20
    assert journal.retry_after(10_000.0) == 60
    journal.encoding = 0
    assert journal.retry_after(10.0) == 1
