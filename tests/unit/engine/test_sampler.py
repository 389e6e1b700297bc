"""The sampler against slow, plain definitions of the same things."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.engine.sampler import _filtered, _weights, drawn, logprob, sample, uniform
from pitstop.errors import InvalidRequest
from pitstop.types import SamplingParams

NO_ENDS: frozenset[int] = frozenset()


def draw(logits, position=0, choice=0, known=(), ends=NO_ENDS, **params) -> int:
    known = list(known) or [0] * position
    return sample(np.asarray(logits, np.float32), SamplingParams(max_tokens=100, **params), known, 0, choice, ends)


def plain_filter(weights: list[int], params: SamplingParams) -> list[int]:
    """Sort everything, cut by definition."""
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    if params.top_k > 0:
        order = order[: params.top_k]
    reached = list(itertools.accumulate(weights[i] for i in order))
    if params.top_p < 1:
        order = order[: sum(weight < params.top_p * reached[-1] for weight in reached) + 1]
    return sorted(i for i in order if weights[i] >= params.min_p * max(weights))


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([5, 300, 3000]),
    st.integers(0, 8),
    st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    st.sampled_from([0.0, 0.2]),
)
def test_filters_keep_what_their_definitions_say(seed: int, size: int, top_k: int, top_p: float, min_p: float) -> None:
    scaled = np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)
    scaled -= scaled.max()
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    candidates, kept = _filtered(weights := _weights(scaled, 1.0), drawn(params, 0, 1))
    assert candidates.tolist() == plain_filter(weights.tolist(), params)
    assert np.array_equal(kept, weights[candidates])
    assert np.allclose(weights * 2.0**-40, np.exp(scaled.astype(np.float64)), rtol=2e-7, atol=2**-40)


def test_ties_at_the_edge_go_to_the_lower_id() -> None:
    logits = np.zeros(10, np.float32)
    assert _filtered(_weights(logits, 1.0), drawn(SamplingParams(top_k=3), 0, 1))[0].tolist() == [0, 1, 2]
    assert _filtered(_weights(logits, 1.0), drawn(SamplingParams(top_p=0.9), 0, 1))[0].tolist() == [*range(9)]
    assert logprob(logits, 9, 2).top == [(0, pytest.approx(-np.log(10))), (1, pytest.approx(-np.log(10)))]
    assert draw(logits, temperature=0) == 0


def test_draws_follow_the_distribution() -> None:
    """Chi-square with 4 degrees of freedom over 20,000 positions of one seed: under 23.5 (p = 0.0001)."""
    logits = np.log([0.4, 0.3, 0.2, 0.07, 0.03])
    counts = np.bincount([draw(logits, position, seed=7) for position in range(1, 20_001)], minlength=5)
    share = np.exp(logits) * 20_000
    assert ((counts - share) ** 2 / share).sum() < 23.5


def test_randomness_is_a_function_of_seed_choice_and_position() -> None:
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    values = {uniform(seed, choice, position) for seed in (-1, 0, 1) for choice in range(3) for position in range(50)}
    assert len(values) == 3 * 3 * 50
    assert all(0 <= value < 1 for value in values)


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 9e-6])
@pytest.mark.parametrize("top_k", [0, -1, 10**9])
def test_tiny_temperatures_are_greedy(temperature: float, top_k: int) -> None:
    assert draw([0.0, 5.0, 4.999999], temperature=temperature, top_p=0.9, top_k=top_k) == 1


def test_extreme_logits_stay_finite() -> None:
    assert draw([3e38, -3e38, 0.0], temperature=0.5, position=3) == 0
    assert draw([1.0, 2.0], temperature=100.0, position=3) in (0, 1)
    chosen = logprob(np.array([3e38, -3e38], np.float32), 0, 2)
    assert chosen.logprob == 0.0
    assert np.isfinite(chosen.top[1][1])


def test_bias_is_obeyed_at_temperature_zero() -> None:
    assert draw([9.0, 1.0, 0.0], temperature=0, logit_bias={2: 100.0}) == 2
    assert draw([9.0, 1.0, 0.0], temperature=0, logit_bias={0: -100.0}) == 1


def test_penalties() -> None:
    logits = [2.0, 1.5, -1.0]
    assert draw(logits, temperature=0, known=[0], presence_penalty=0.6) == 1
    assert draw(logits, temperature=0, known=[0, 0, 0], frequency_penalty=0.2) == 1
    assert draw(logits, temperature=0, known=[0, 0], frequency_penalty=0.2) == 0
    assert draw(logits, temperature=0, known=[0], repetition_penalty=1.5) == 1
    prompt_only = SamplingParams(temperature=0, presence_penalty=2.0, frequency_penalty=2.0)
    assert sample(np.array(logits, np.float32), prompt_only, [0, 0], 2, 0, NO_ENDS) == 0  # these two count the answer alone


def test_min_tokens_bars_the_ends() -> None:
    ends = frozenset({0})
    assert draw([9.0, 8.0, 7.0], temperature=0, known=[5], min_tokens=2, stop_token_ids=(1,), ends=ends) == 2
    assert draw([9.0, 8.0, 7.0], temperature=0, known=[5, 5], min_tokens=2, stop_token_ids=(1,), ends=ends) == 0


def test_the_callers_logits_are_not_changed() -> None:
    logits = np.array([2.0, 1.0], np.float32)
    draw(logits, temperature=0.7, known=[0], presence_penalty=1.0, logit_bias={1: 3.0})
    assert logits.tolist() == [2.0, 1.0]


def test_logprobs_are_the_models_own() -> None:
    logits = np.random.default_rng(0).normal(0, 4, 5000).astype(np.float32)
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    scored = logprob(logits, 17, 5)
    assert scored.logprob == pytest.approx(exact[17], abs=1e-6)
    assert [token for token, _ in scored.top] == np.argsort(-logits, kind="stable")[:5].tolist()
    assert [value for _, value in scored.top] == pytest.approx(sorted(exact)[::-1][:5], abs=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", float("nan")), ("temperature", -0.1), ("temperature", 999999), ("top_p", 0.0), ("top_p", -1), ("top_p", 1.1),
        ("top_k", -2), ("min_p", 2), ("seed", 2**64), ("max_tokens", -1), ("min_tokens", 17), ("logprobs", 21), ("logprobs", -1),
        ("presence_penalty", 2.1), ("repetition_penalty", 0), ("stop", ("",)), ("stop", ("a",) * 17),
    ],
)  # fmt: skip
def test_bad_values_name_their_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as raised:
        SamplingParams(**{field: value})
    assert raised.value.field == field


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    for params in (SamplingParams(logit_bias={10: 1.0}), SamplingParams(stop_token_ids=(-1,))):
        with pytest.raises(InvalidRequest, match="outside the vocabulary of 10"):
            params.check_vocabulary(10)
