"""Models and their weights. Importing this imports no torch; loading one does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pitstop.models.decoder import Decoder
    from pitstop.models.encoder import Encoder
    from pitstop.models.weights.source import ModelSource


def load_model(source: ModelSource, device: str, context: int, activations: str = "exact", share: bool = False) -> Decoder:
    """The decoder that the source describes with its weights on `device`, for positions below `context`.

    activations: what quantised weights are multiplied by on the CPU: "int16", "int8" or "fp32"; "exact" is int16, the fastest that keeps
    the answers of fp32 (mean KL divergence below 10⁻⁶). share: map packed weights from a file in the cache folder (packed.py).
    Raises WeightsError for a missing or misshapen tensor.
    """
    from pitstop.models import packed
    from pitstop.models.decoder import Decoder, Loader

    return packed.build(source, device, share, lambda shelf: Decoder(Loader(source, device, activations, shelf), context))


def load_encoder(source: ModelSource, device: str, activations: str = "exact", share: bool = False) -> Encoder:
    """The same of an encoder, which has no context to set."""
    from pitstop.models import packed
    from pitstop.models.decoder import Loader
    from pitstop.models.encoder import Encoder

    return packed.build(source, device, share, lambda shelf: Encoder(Loader(source, device, activations, shelf)))
