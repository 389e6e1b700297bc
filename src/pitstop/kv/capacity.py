"""How much fits: one arithmetic of pages, tails and bytes for the pool's size, the start line, /metrics and `kv-report`. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pitstop.types import SEGMENT, Codec, KVShape


def stream_pages(tokens: int, lead_pages: int) -> int:
    """Pages that a stream of so many tokens holds: one for each whole segment, and the lead pages with the first."""
    segments = tokens // SEGMENT
    return segments + lead_pages if segments else 0


def longest_stream(pages: int, lead_pages: int) -> int:
    """Tokens that a single stream can have with so many pages; the last, open segment needs none."""
    return (max(pages - lead_pages, 0) + 1) * SEGMENT - 1


def reserved_tails(max_running: int, prefill_chunk: int, cached_tails: int) -> int:
    """Tail slots of a pool: one per running request, those that a step's prefill fills, one to copy into, and the prefix index's own."""
    return max_running + prefill_chunk // SEGMENT + 2 + cached_tails


def values_per_token(shape: KVShape) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_dim


def page_bytes(codec: Codec, shape: KVShape) -> int:
    """Bytes of one page over all layers."""
    return shape.layers * codec.page_bytes(shape)


def tail_bytes(codec: Codec, shape: KVShape) -> int:
    """Bytes of one tail slot over all layers."""
    return SEGMENT * values_per_token(shape) * codec.tail_dtype.itemsize


def pages_within(memory: int, tails: int, codec: Codec, shape: KVShape) -> int:
    """How many pages fit into `memory` bytes beside `tails` tail slots; may be 0 or less."""
    return (memory - tails * tail_bytes(codec, shape)) // page_bytes(codec, shape)


def bits_per_value(codec: Codec, shape: KVShape, length: int, streams: int = 1, tails: int = 0) -> float:
    """Allocated bits (codes, scales, zeros, padding, lead pages, tails) for each value of `streams` streams of `length` tokens.

    The mean over the lengths length … length + 127, so that no phase of the open segment is favoured. tails: slots reserved for all the
    streams together; 0: one each.
    """
    total = 0.0
    for tokens in range(length, length + SEGMENT):
        pages = streams * stream_pages(tokens, codec.lead_pages)
        size = pages * page_bytes(codec, shape) + (tails or streams) * tail_bytes(codec, shape)
        total += 8 * size / (streams * tokens * values_per_token(shape))
    return total / SEGMENT


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a pool holds in sealed segments of streams of `length` tokens: `tokens` in all, `ratio` times as many as in 16 bits."""

    tokens: int
    length: int
    ratio: float

    def __str__(self) -> str:
        held = f"{self.tokens:,} tokens in streams of {self.length:,}"
        if self.ratio == 1:
            return held
        return f"{held}, {self.ratio:.2f} times those of 16 bits" if math.isfinite(self.ratio) else f"{held}, where 16 bits would hold none"


def capacity(memory: int, tails: int, codec: Codec, shape: KVShape, length: int) -> Capacity:
    """Of a pool of `memory` bytes with `tails` reserved slots. A sealed segment of 16 bits is as large as a tail of 16 bits.

    `length` is rounded down to whole segments, one at least; a part of a stream counts as that part. 0 tokens where the tails do not fit.
    """
    length = max(length // SEGMENT, 1) * SEGMENT
    tokens = max(0, pages_within(memory, tails, codec, shape)) * length // stream_pages(length, codec.lead_pages)
    raw = (memory // (2 * SEGMENT * values_per_token(shape)) - tails) * SEGMENT
    return Capacity(tokens, length, tokens / raw if raw > 0 else math.inf)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a pool is for: how many requests at once, prompt tokens a step, tails that the prefix index keeps; padding: tails beside."""

    max_running: int
    prefill_chunk: int
    cached_tails: int
    padding: int = 0

    @property
    def tails(self) -> int:
        """Slots of all, those of the padding included."""
        return reserved_tails(self.max_running, self.prefill_chunk, self.cached_tails) + self.padding

    def least(self, codec: Codec, shape: KVShape) -> int:
        """Bytes of the smallest pool: the tails, and the pages of one sealed segment."""
        return self.tails * tail_bytes(codec, shape) + stream_pages(SEGMENT, codec.lead_pages) * page_bytes(codec, shape)

    def longest(self, memory: int, codec: Codec, shape: KVShape) -> int:
        """Tokens that one stream can have in `memory` bytes; 0 where they do not hold the smallest pool."""
        if memory < self.least(codec, shape):
            return 0
        return longest_stream(pages_within(memory, self.tails, codec, shape), codec.lead_pages)


def gpu_pool(free: int, weights: int, workers: int, reserve: int) -> int:
    """Bytes for the cache of a GPU that has `free` bytes left beside the `weights` bytes of this worker; `workers` share it alike.

    reserve: bytes that stay free. May be 0 or less.
    """
    return min(free, (free + weights) // workers - weights) - reserve


def step_bytes(rows: int, width: int, inner: int, vocab: int, drawn: int) -> int:
    """What a step of so many rows holds at once beside the weights, at most: states, a feed-forward's inner ones, logits, in fp32; and of
    the rows that tokens are drawn from, logits once more, and keys of 8 bytes."""
    return 4 * rows * (8 * width + 3 * inner + 2 * vocab) + 12 * drawn * vocab


def what_fits(memory: int, context: int, demand: Demand, codecs: Sequence[Codec], shape: KVShape) -> Iterator[str]:
    """Options with which `memory` bytes hold more of a stream of `context` tokens than with the first codec: the other codecs, and half
    as many requests at once, or a quarter, …
    """
    chosen, *others = codecs
    here = demand.longest(memory, chosen, shape)
    for codec in others:
        if here < context and (longest := demand.longest(memory, codec, shape)) > here:
            yield f"--kv {codec.name} ({_held(longest, context)})"
    running = demand.max_running
    while running > 1 and here < context:
        running //= 2
        if (longest := replace(demand, max_running=running).longest(memory, chosen, shape)) > here:
            yield f"--max-running {running} ({_held(longest, context)})"
            return


def _held(longest: int, context: int) -> str:
    return f"{min(longest, context):,} tokens"
