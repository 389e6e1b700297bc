"""Two models on the same text, position by position: what the guard, the benches and `pitstop verify quality` all measure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pitstop.stats.distributions import changed_top, divergence, log_softmax, perplexity
from pitstop.stats.percentiles import percentile

ROWS = 8
"""Positions compared at once: each is 400 kB in float64 at 50,000 tokens, so few stay in the cache, which makes it six times as fast."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How near a model is to its reference. Divergences in nats; same_top: share of equal likeliest tokens, 0 to 1.

    The perplexities are of the text that came, None when it was not given.
    """

    tokens: int
    kl_mean: float
    kl_p999: float
    same_top: float
    reference_perplexity: float | None = None
    perplexity: float | None = None

    @property
    def perplexity_rise(self) -> float | None:
        """Relative: 0.01 is 1 %."""
        return self.perplexity / self.reference_perplexity - 1 if self.perplexity is not None else None


class Comparison:
    """Gathers positions; keeps a few numbers of each, never its logits."""

    def __init__(self) -> None:
        self._divergences: list[np.ndarray] = []
        self._changed: list[np.ndarray] = []
        self._logprobs: list[np.ndarray] = []  # [2, positions]: the reference's and the model's, of the tokens that came

    def add(self, reference: np.ndarray, other: np.ndarray, targets: np.ndarray | None = None) -> None:
        """reference and other [positions, vocab]: logits; targets [positions]: the tokens that came.

        Raises ValueError for different shapes, and as log_softmax does.
        """
        if reference.shape != other.shape:
            raise ValueError(f"shapes differ: {list(reference.shape)} and {list(other.shape)}")
        for first in range(0, len(reference), ROWS):
            rows = slice(first, first + ROWS)
            p, q = log_softmax(reference[rows]), log_softmax(other[rows])
            self._divergences.append(divergence(p, q))
            self._changed.append(changed_top(reference[rows], other[rows]))
            if targets is not None:
                came = np.arange(len(p)), targets[rows]
                self._logprobs.append(np.stack([p[came], q[came]]))

    def agreement(self) -> Agreement:
        """Of all that was added. Raises ValueError when that is nothing."""
        if not self._divergences:
            raise ValueError("nothing was compared")
        found = np.concatenate(self._divergences)
        perplexities = map(perplexity, np.concatenate(self._logprobs, axis=1)) if self._logprobs else (None, None)
        same = 1 - float(np.concatenate(self._changed).mean())
        return Agreement(len(found), float(found.mean()), percentile(found, 99.9), same, *perplexities)
