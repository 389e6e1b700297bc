"""Bits a value with everything counted, for `pitstop kv-report`: what each codec allocates at which length. Arithmetic only, no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pitstop.config import EngineConfig
from pitstop.kv.capacity import bits_per_value, page_bytes, reserved_tails, tail_bytes
from pitstop.types import SEGMENT, Codec, KVShape

LENGTHS = (1 << 10, 8 << 10, 32 << 10, 128 << 10)
STREAMS = (1, 32)


@dataclass(frozen=True, slots=True)
class Row:
    """One codec. `own`: bits a value of a stream's pages and its open segment; `pool`: of all that a pool for so many streams reserves."""

    codec: str
    refused: str | None  # why the codec cannot serve the model
    page_bytes: int = 0  # a sealed segment over all layers
    tail_bytes: int = 0  # an open one
    lead_pages: int = 0
    own: dict[int, float] | None = None  # by length
    pool: dict[int, dict[int, float]] | None = None  # by streams, then length


def rows(codecs: Iterable[Codec], shape: KVShape, device: str = "cpu") -> list[Row]:
    """What each codec allocates for a model of this shape; averages over 128 consecutive lengths."""
    return [_row(codec, shape, device) for codec in codecs]


def _row(codec: Codec, shape: KVShape, device: str) -> Row:
    if reason := codec.supports(shape, device):
        return Row(codec.name, reason)
    usual = EngineConfig(model="")
    pools = {streams: reserved_tails(streams, usual.prefill_chunk, usual.kv.cached_tails) for streams in STREAMS}
    return Row(
        codec.name,
        None,
        page_bytes(codec, shape),
        tail_bytes(codec, shape),
        codec.lead_pages,
        {length: bits_per_value(codec, shape, length) for length in LENGTHS},
        {n: {length: bits_per_value(codec, shape, length, n, tails) for length in LENGTHS} for n, tails in pools.items()},
    )


def ruled_segment(tokens: int) -> int:
    """The account's rule for the segment's length in a sequence of so many tokens."""
    return max(min(SEGMENT, tokens // 256), 1)


def ruled_bits(head_dim: int, length: int) -> float:
    """Bits a value of the account's scheme with segments by its own rule, one stream, over the same 128 lengths as the codecs.

    Read as: the whole stream is cut into segments of ruled_segment(tokens); a sealed one has 8-bit codes and, for a head's keys and for
    its values, one least and one largest value of 16 bits; the open one is 16-bit and reserved whole.
    """
    total = 0.0
    for tokens in range(length, length + SEGMENT):
        segment = ruled_segment(tokens)
        sealed = tokens // segment * (segment * head_dim * 8 + 2 * 16)
        total += (sealed + segment * head_dim * 16) / (tokens * head_dim)
    return total / SEGMENT
