"""Decoders and their weights. Importing this imports no torch; `load_model` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pitstop.models.decoder import Decoder
    from pitstop.models.weights.source import ModelSource


def load_model(source: ModelSource, device: str, context: int, activations: str = "exact") -> Decoder:
    """The decoder that the source describes with its weights on `device`, for positions below `context`.

    activations: what quantised weights are multiplied by on the CPU: "int16", "int8" or "fp32"; "exact" is int16, the fastest that keeps
    the answers of fp32 (mean KL divergence below 10⁻⁶).
    Raises WeightsError for a missing or misshapen tensor.
    """
    from pitstop.models.decoder import Decoder

    return Decoder(source, device, context, "int16" if activations == "exact" else activations)
