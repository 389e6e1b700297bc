"""Guesses by looking up: against a plain search through the text, and what is learned from those that fail."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.engine.lookup import LENGTHS, LONGEST, START, Lookup

texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def searched(known: list[int], prompt_length: int) -> int:
    """Where the text goes on, the slow way: -1 for nowhere. Token by token, as the class says."""
    place = -1
    for end in range(prompt_length, len(known) + 1):
        if place >= 0 and known[place] == known[end - 1]:
            place += 1
            continue
        place = -1
        for n in LENGTHS:
            earlier = [at for at in range(n, end) if known[at - n : at] == known[end - n : end]]
            if n <= end and earlier:
                place = earlier[-1]
                break
    return place


@given(texts, st.integers(1, 60), st.integers(1, 9))
def test_guesses_are_those_of_a_search(known: list[int], prompt_length: int, count: int) -> None:
    prompt_length = min(prompt_length, len(known))
    place = searched(known, prompt_length)
    guess = Lookup(known, prompt_length).guess(count)
    if place < 0:
        assert guess == []
    else:
        period = len(known) - place
        assert guess == [known[place + at % period] for at in range(count)]


@given(texts, texts, st.lists(st.integers(1, 7)))
def test_what_is_known_alone_decides_and_not_when_it_came(prompt: list[int], answer: list[int], steps: list[int]) -> None:
    """A replay, and another worker, guess as the first one did."""
    known = list(prompt)
    lookup = Lookup(known, len(prompt))
    for step in steps:
        lookup.guess(3)
        known += answer[len(known) - len(prompt) :][:step]
    known += answer[len(known) - len(prompt) :]
    at_once = Lookup(prompt + answer, len(prompt))
    assert (lookup.guess(8), lookup.chances(8)) == (at_once.guess(8), at_once.chances(8))


def test_the_longest_agreement_counts_and_then_the_latest() -> None:
    known = [1, 2, 3, 4, 70, 9, 2, 3, 4, 80, 9, 9, 3, 4, 90, 1, 2, 3, 4]
    assert Lookup(known, 1).guess(1) == [70]
    known = [1, 2, 3, 4, 70, 1, 2, 3, 4, 80, 1, 2, 3, 4]
    assert Lookup(known, len(known)).guess(1) == [80]


def test_a_guess_that_came_true_goes_on_where_it_was() -> None:
    """And not at a later place where only the last four agree."""
    head, line = [50, 51, 52, 53], [1, 2, 3, 4]
    known = [*head, *line, 60, *line, 61, *line, 62, *head]
    lookup = Lookup(known, len(known))
    assert lookup.guess(4) == line
    known += line
    assert lookup.guess(1) == [60]


def test_a_text_that_repeats_itself_up_to_its_end_goes_on_repeating() -> None:
    assert Lookup([7, 8, 9, 7, 8, 9, 7, 8], 1).guess(7) == [9, 7, 8, 9, 7, 8, 9]


def test_nothing_is_guessed_where_nothing_repeats() -> None:
    for known in ([1], [1, 1], list(range(100))):
        assert Lookup(known, len(known)).guess(4) == []
        assert Lookup(known, len(known)).chances(0) == []


def test_chances_fall_with_failures_and_rise_with_hits_whoever_computes_the_guess() -> None:
    draw = random.Random(1)
    prompt = draw.choices(range(50), k=200)
    echo, other = list(prompt), list(prompt)
    echoed, tried = Lookup(echo, 200), Lookup(other, 200)
    echo += prompt
    assert len(echoed.guess(8)) == 8
    chances = echoed.chances(8)
    assert chances[0] > 0.95
    assert chances == sorted(chances, reverse=True)
    other += [
        token for at in range(0, 196, 2) for token in (*prompt[at : at + 2], 60 + at)
    ]  # each pair repeats, and then it does not go on
    tried.guess(1)
    assert tried._rates[2] < 0.05
    assert tried._rates[LONGEST] == START[LONGEST], "of longer ones nothing has become known"


@pytest.mark.parametrize("length", [1, 5, 40])
def test_the_prompt_teaches_nothing_of_chances(length: int) -> None:
    known = [1, 2, 3, 4, 5] * length
    lookup = Lookup(known, len(known))
    lookup.guess(1)
    assert lookup._rates == [*START]
