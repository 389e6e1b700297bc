"""Comparing models by the distributions that they predict. All in float64: the differences that matter are far below fp32's rounding."""

from __future__ import annotations

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural-log probabilities of logits [..., vocab], float64. A logit of -inf is a probability of zero.

    Raises ValueError for a row that has NaN, +inf or nothing but -inf: it is no distribution.
    """
    logits = np.asarray(logits, np.float64)
    peak = logits.max(axis=-1, keepdims=True)
    if not np.isfinite(peak).all():
        raise ValueError("logits must be finite or -inf, with one finite value in every row")
    shifted = logits - peak
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def kl_divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(reference ‖ other) = Σ p·(ln p - ln q) of each row, in nats (Kullback and Leibler 1951): logits [..., vocab] → float64 [...].

    inf where `other` excludes what the reference allows. Raises ValueError for different shapes, or as log_softmax does.
    """
    _same_shape(reference, other)
    return divergence(log_softmax(reference), log_softmax(other))


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """kl_divergence of natural-log probabilities p and q [..., vocab] float64."""
    with np.errstate(invalid="ignore"):  # -inf - -inf, where p is 0: such terms are 0
        terms = np.where(np.isneginf(p), 0.0, np.exp(p) * (p - q))
    return terms.sum(axis=-1)


def lumped_divergence(p: np.ndarray, q: np.ndarray) -> float:
    """The least that KL(p ‖ q) can be when only some tokens' natural-log probabilities are known: p and q [tokens], the same tokens.

    All others are lumped into one: merging outcomes never raises a divergence (data-processing inequality, Cover and Thomas 2006, 2.8).
    """
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    p_rest, q_rest = max(0.0, 1 - np.exp(p).sum()), max(_ROUNDING, 1 - np.exp(q).sum())
    rest = p_rest * np.log(p_rest / q_rest) if p_rest else 0.0
    return max(0.0, float(divergence(p, q) + rest))


def changed_top(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether the likeliest token (of equals, the lowest id) differs: logits [..., vocab] → bool [...].

    Raises ValueError for different shapes.
    """
    _same_shape(reference, other)
    return np.argmax(reference, axis=-1) != np.argmax(other, axis=-1)


def perplexity(logprobs: np.ndarray) -> float:
    """exp of the mean negative natural-log probability that a model gave to the tokens that came; logprobs of any shape.

    Raises ValueError when there are none.
    """
    logprobs = np.asarray(logprobs, np.float64)
    if not logprobs.size:
        raise ValueError("perplexity of no tokens")
    return float(np.exp(-logprobs.mean()))


_ROUNDING = 1e-6
"""What a sum of printed probabilities may lack: a rest below it counts as this much, which can only lower the bound."""


def _same_shape(reference: np.ndarray, other: np.ndarray) -> None:
    if np.shape(reference) != np.shape(other):
        raise ValueError(f"shapes differ: {list(np.shape(reference))} and {list(np.shape(other))}")
