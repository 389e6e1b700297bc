"""An answer that is computed again is compared with what its client was told, part by part."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.errors import WorkerDied
from pitstop.pool.recheck import Recheck
from pitstop.pool.stream import Delta, TokenScore

TOKENS = list(range(100, 112))
SCORES = [TokenScore(chr(97 + i), b"", -float(i)) for i in range(len(TOKENS))]


def deltas(cuts: list[int], scored: bool = True) -> list[Delta]:
    """The answer in groups that end at `cuts`; its text lags a token behind, as held-back text does."""
    parts = []
    for start, end in pairwise([0, *cuts, len(TOKENS)]):
        text = "".join(score.text for score in SCORES[max(start - 1, 0) : end if end == len(TOKENS) else max(end - 1, 0)])
        finish = "length" if end == len(TOKENS) else None
        scores = SCORES[start:end] if scored else None
        parts.append(Delta("a", TOKENS[start:end], text, scores, finish, prompt_scores=SCORES[:2] if start == 0 else None))
    return parts


def joined(parts: list[Delta]) -> tuple:
    return (
        [token for part in parts for token in part.tokens],
        "".join(part.text for part in parts),
        [score for part in parts for score in part.scores or ()],
        [part.prompt_scores for part in parts if part.prompt_scores is not None],
        [part.finish for part in parts if part.finish],
    )


cuts = st.sets(st.integers(1, len(TOKENS) - 1)).map(sorted)


@given(cuts, cuts, st.integers(0, len(TOKENS)), st.booleans())
def test_client_gets_the_whole_answer_once_however_tokens_are_grouped(first: list[int], second: list[int], told: int, scored: bool):
    before = deltas(first, scored)[: min(told, len(first))]
    recheck = Recheck(before)
    after = [recheck.take(delta) for delta in deltas(second, scored)]
    assert joined(before + after) == joined(deltas([], scored))
    assert recheck.done


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": [100, 101, 9]},
        {"text": "ax"},
        {"scores": [SCORES[0], SCORES[1], SCORES[3]]},
        {"prompt_scores": SCORES[:1]},
    ],
)
def test_what_contradicts_is_an_error(wrong: dict):
    told = deltas([3])[0]
    with pytest.raises(WorkerDied, match="already sent is wrong"):
        Recheck([told]).take(told._replace(**wrong))


def test_an_answer_that_ends_before_what_was_told_is_an_error():
    recheck = Recheck(deltas([5])[:1])
    with pytest.raises(WorkerDied, match="already sent is wrong"):
        recheck.take(deltas([3])[0]._replace(finish="stop"))


def test_other_ends_are_not_compared():
    late = Delta("a", [], finish="timeout")
    assert Recheck(deltas([5])[:1]).take(late) is late
