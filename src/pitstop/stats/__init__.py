"""Arithmetic of measurements, in numpy: how far two models' distributions lie apart, and percentiles."""

from pitstop.stats.distributions import changed_top, kl_divergence, log_softmax, perplexity
from pitstop.stats.percentiles import percentile

__all__ = ["changed_top", "kl_divergence", "log_softmax", "percentile", "perplexity"]
