"""KL divergence, perplexity and changed tops against their definitions, computed slowly with exact fractions or plain floats."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pitstop.stats import changed_top, kl_divergence, log_softmax, perplexity


def softmax(row: list[float]) -> list[float]:
    weights = [math.exp(value - max(row)) for value in row]
    return [weight / math.fsum(weights) for weight in weights]


def slow_kl(reference: list[float], other: list[float]) -> float:
    terms = zip(softmax(reference), softmax(other), strict=True)
    return math.fsum(p * math.log(p / q) for p, q in terms if p > 0)


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 4, (5, 3, 50)).astype(np.float32)


def test_log_softmax_by_definition(logits: np.ndarray) -> None:
    expected = [[[math.log(p) for p in softmax(row.tolist())] for row in rows] for rows in logits]
    np.testing.assert_allclose(log_softmax(logits), expected, rtol=1e-13)


def test_log_softmax_of_large_logits() -> None:
    np.testing.assert_allclose(log_softmax(np.array([3e38, 3e38], np.float32)), [-math.log(2)] * 2, rtol=1e-15)


@pytest.mark.parametrize("bad", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_log_softmax_refuses_what_is_no_distribution(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        log_softmax(np.array([[0.0, 1.0], bad]))


def test_kl_divergence_by_definition(logits: np.ndarray) -> None:
    other = logits + np.random.default_rng(1).normal(0, 0.5, logits.shape)
    expected = [
        [slow_kl(*(part.tolist() for part in pair)) for pair in zip(*rows, strict=True)] for rows in zip(logits, other, strict=True)
    ]
    np.testing.assert_allclose(kl_divergence(logits, other), expected, rtol=1e-11)


def test_kl_divergence_by_hand() -> None:
    """p = (1/2, 1/2), q = (1/4, 3/4): ½ ln 2 + ½ ln ⅔; the other way round it is another number."""
    p, q = np.log([0.5, 0.5]), np.log([0.25, 0.75])
    assert float(kl_divergence(p, q)) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-14)
    assert float(kl_divergence(q, p)) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5), rel=1e-14)


def test_kl_divergence_sees_small_differences() -> None:
    """For logits moved by δ it is ½·Var(δ) to leading order: 10⁻¹⁰ here, far below what fp32 sums could show."""
    generator = np.random.default_rng(2)
    logits, change = generator.normal(0, 3, 5000), generator.normal(0, 1e-5, 5000)
    p = np.exp(log_softmax(logits))
    variance = float((p * change**2).sum() - (p * change).sum() ** 2)
    assert float(kl_divergence(logits, logits + change)) == pytest.approx(variance / 2, rel=1e-4)


def test_kl_divergence_does_not_see_a_shift(logits: np.ndarray) -> None:
    assert np.abs(kl_divergence(logits, logits.astype(np.float64) + 100)).max() < 1e-13


def test_kl_divergence_of_barred_tokens() -> None:
    barred, free = np.array([0.0, 0.0, -np.inf]), np.array([0.0, 0.0, 0.0])
    assert float(kl_divergence(barred, barred)) == 0.0
    assert float(kl_divergence(barred, free)) == pytest.approx(math.log(1.5), rel=1e-14)
    assert float(kl_divergence(free, barred)) == math.inf


def test_changed_top() -> None:
    reference = np.array([[1.0, 2.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 5.0]])
    other = np.array([[1.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 0.1]])
    assert changed_top(reference, other).tolist() == [True, False, False]


@pytest.mark.parametrize("function", [kl_divergence, changed_top])
def test_shapes_must_agree(function) -> None:
    with pytest.raises(ValueError, match=r"\[3\] and \[1, 3\]"):
        function(np.zeros(3), np.zeros((1, 3)))


def test_perplexity_by_definition() -> None:
    """The inverse of the geometric mean of the probabilities."""
    probabilities = [0.5, 0.25, 0.125, 0.9]
    assert perplexity(np.log(probabilities)) == pytest.approx(math.prod(probabilities) ** (-1 / 4), rel=1e-14)
    assert perplexity(np.log(np.full((2, 3), 1 / 49152))) == pytest.approx(49152, rel=1e-13)
    with pytest.raises(ValueError, match="no tokens"):
        perplexity(np.empty(0))
