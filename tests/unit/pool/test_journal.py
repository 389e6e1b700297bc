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


def test_the_oldest_that_waits_is_known_from_the_door_on():
    journal = Journal()
    assert journal.oldest_waiting() is None
    early = Entry(Request(id="a", prompt=[1], params=SamplingParams(), arrival=5.0), Stream(["a"], lambda stream: None))
    journal.add(early)
    place = object()
    journal.hold(place, 2)
    assert (journal.oldest_waiting(), journal.waiting) == (5.0, 3)
    journal.emit(early, [7], 6.0)
    assert journal.oldest_waiting() > 6.0  # the place at the door
    journal.give_back(place, 2)
    assert (journal.oldest_waiting(), journal.waiting) == (None, 0)
    journal.check()


def test_waiting_tokens_count_a_prompt_once_for_all_its_answers():
    journal = Journal()
    stream = Stream(["a", "b"], lambda stream: None)
    both = [Entry(Request(id=name, prompt=[1] * 9, params=SamplingParams(), choice=i), stream) for i, name in enumerate("ab")]
    for one in both:
        journal.add(one)
    assert journal.waiting_tokens == 9
    journal.end(both[1], "cancelled", 1.0)
    assert journal.waiting_tokens == 9
    journal.emit(both[0], [5], 2.0)
    assert journal.waiting_tokens == 0
    journal.check()
