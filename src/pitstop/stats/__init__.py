"""Arithmetic of measurements, in numpy: how far two models' distributions lie apart, and percentiles."""

from pitstop.stats.comparison import Agreement, Comparison
from pitstop.stats.distributions import changed_top, kl_divergence, log_softmax, lumped_divergence, perplexity
from pitstop.stats.percentiles import percentile

__all__ = [
    "Agreement",
    "Comparison",
    "changed_top",
    "kl_divergence",
    "log_softmax",
    "lumped_divergence",
    "percentile",
    "perplexity",
]
