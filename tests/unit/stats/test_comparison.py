"""The comparison of two models, and what a part of their distributions says of the whole."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pitstop.stats import Comparison, kl_divergence, log_softmax, lumped_divergence, percentile


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of two models at 1,000 positions, and the tokens that came."""
    draw = np.random.default_rng(0)
    reference = draw.normal(0, 3, (1000, 40)).astype(np.float32)
    other = reference + draw.normal(0, 0.3, reference.shape).astype(np.float32)
    return reference, other, draw.integers(0, 40, 1000)


def test_the_agreement_is_that_of_all_positions_however_they_came(pair):
    reference, other, targets = pair
    found = Comparison()
    for rows in np.split(np.arange(1000), [1, 9, 17, 400]):
        found.add(reference[rows], other[rows], targets[rows])
    agreement = found.agreement()
    divergences = kl_divergence(reference, other)
    assert agreement.tokens == 1000
    assert agreement.kl_mean == pytest.approx(divergences.mean(), rel=1e-12)
    assert agreement.kl_p999 == percentile(divergences, 99.9)
    assert agreement.same_top == np.mean(reference.argmax(1) == other.argmax(1))
    chosen = log_softmax(other)[np.arange(1000), targets]
    assert agreement.perplexity == pytest.approx(math.exp(-chosen.mean()), rel=1e-12)
    before = math.exp(-log_softmax(reference)[np.arange(1000), targets].mean())
    assert agreement.reference_perplexity == pytest.approx(before, rel=1e-12)
    assert agreement.perplexity_rise == pytest.approx(agreement.perplexity / before - 1, rel=1e-9)


def test_equal_models_agree_exactly(pair):
    reference, _, targets = pair
    found = Comparison()
    found.add(reference, reference.copy(), targets)
    agreement = found.agreement()
    assert (agreement.kl_mean, agreement.kl_p999, agreement.same_top, agreement.perplexity_rise) == (0.0, 0.0, 1.0, 0.0)


def test_without_the_tokens_that_came_there_is_no_perplexity(pair):
    found = Comparison()
    found.add(*pair[:2])
    assert found.agreement().perplexity is None
    assert found.agreement().perplexity_rise is None


def test_what_cannot_be_compared(pair):
    with pytest.raises(ValueError, match="nothing was compared"):
        Comparison().agreement()
    with pytest.raises(ValueError, match=r"shapes differ: \[2, 40\] and \[1, 40\]"):
        Comparison().add(pair[0][:2], pair[1][:1])
    with pytest.raises(ValueError, match="finite"):
        Comparison().add(pair[0][:1], np.full((1, 40), np.nan, np.float32))


@pytest.mark.parametrize("known", [0, 1, 5, 20, 39])
def test_some_tokens_bound_the_divergence_from_below(pair, known: int):
    reference, other, _ = pair
    whole = kl_divergence(reference, other)
    p, q = log_softmax(reference), log_softmax(other)
    tops = np.argsort(-p, axis=1)[:, :known]
    bounds = np.array([lumped_divergence(p[i, top], q[i, top]) for i, top in enumerate(tops)])
    assert (bounds <= whole + 1e-12).all()
    assert bounds.mean() > (0.4 if known >= 5 else 0) * whole.mean() - 1e-12
    if known == 39:  # all but one token: the rest is that one
        np.testing.assert_allclose(bounds, whole, rtol=1e-3, atol=1e-6)


def test_a_bound_by_definition():
    p, q = np.log([0.5, 0.25]), np.log([0.25, 0.25])
    assert lumped_divergence(p, q) == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(0.5))
    assert lumped_divergence(p, p) == 0


@pytest.mark.parametrize(("p", "q"), [([0.6, 0.4], [0.6, 0.4]), ([0.6, 0.4000001], [0.6, 0.3999999]), ([0.6, 0.4], [0.6, 0.40001])])
def test_rounded_probabilities_of_all_tokens_are_no_infinite_divergence(p, q):
    assert 0 <= lumped_divergence(np.log(p), np.log(q)) < 1e-4
