"""How much fits, against counting by hand and against a pool that is filled."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from pitstop.kv.cache import KVCache
from pitstop.kv.capacity import (
    Capacity,
    Demand,
    bits_per_value,
    capacity,
    gpu_pool,
    longest_stream,
    page_bytes,
    pages_within,
    step_bytes,
    stream_pages,
    tail_bytes,
    what_fits,
)
from pitstop.kv.report import LENGTHS, rows, ruled_bits, ruled_segment
from pitstop.types import KVShape

SHAPE = KVShape(layers=30, kv_heads=3, head_dim=64)
FLOAT16 = np.dtype("float16")


@dataclass(frozen=True)
class Stub:
    """A codec of `bits` a value in sealed segments, metadata included."""

    bits: float
    lead_pages: int = 0
    name: str = "stub"
    reason: str | None = None
    tail_dtype: np.dtype = FLOAT16

    def supports(self, shape: KVShape, device: str) -> str | None:
        return self.reason

    def page_bytes(self, shape: KVShape) -> int:
        return int(128 * 2 * shape.kv_heads * shape.head_dim * self.bits / 8)


RAW = Stub(16)


def test_a_streams_pages() -> None:
    assert [stream_pages(tokens, 0) for tokens in (0, 127, 128, 255, 256)] == [0, 0, 1, 1, 2]
    assert [stream_pages(tokens, 1) for tokens in (0, 127, 128, 255, 256)] == [0, 0, 2, 2, 3]


@pytest.mark.parametrize("lead_pages", [0, 1])
@pytest.mark.parametrize("pages", range(7))
def test_the_longest_stream_fits_and_one_token_more_does_not(pages: int, lead_pages: int) -> None:
    longest = longest_stream(pages, lead_pages)
    cache = KVCache(pages, pages + 2, lead_pages=lead_pages, prefix=False)
    holding = cache.open([0] * (longest + 1), 1)
    assert cache.fits(holding, longest)
    assert not cache.fits(holding, longest + 1)
    assert cache.reserve(holding, longest) is not None
    cache.commit(holding, [0] * longest)
    assert cache.reserve(holding, 1) is None


@pytest.mark.parametrize(("bits", "lead_pages", "length"), [(16, 0, 8192), (8.375, 0, 8192), (4.375, 1, 8192), (4.375, 1, 256)])
def test_capacity_is_what_a_pool_holds(bits: float, lead_pages: int, length: int) -> None:
    codec, tails = Stub(bits, lead_pages), 70
    memory = tails * tail_bytes(codec, SHAPE) + 1000 * page_bytes(codec, SHAPE) + 5
    assert pages_within(memory, tails, codec, SHAPE) == 1000
    found = capacity(memory, tails, codec, SHAPE, length)
    cache = KVCache(1000, 2000, lead_pages=lead_pages, prefix=False)
    streams = 0
    while cache.reserve(holding := cache.open([0] * length, length), length) is not None:
        cache.commit(holding, [0] * length)
        streams += 1
    assert streams * length <= found.tokens < (streams + 1) * length
    assert found.length == length
    raw = pages_within(memory, tails, RAW, SHAPE) * 128
    assert found.ratio == found.tokens / raw
    assert (found.ratio == 1) == (bits == 16)


def test_the_ratio_counts_lead_pages() -> None:
    """At 4.375 bits: 3.657 times in sealed bits; of a short stream's segments the lead page takes a larger share."""
    codec, tail = Stub(4.375, 1), tail_bytes(RAW, SHAPE)
    ratios = {length: capacity(10**12, 70, codec, SHAPE, length).ratio for length in (1 << 17, 8192, 1024, 128)}
    assert ratios == pytest.approx({n: 16 / 4.375 * (n / 128) / (n / 128 + 1) for n in ratios}, rel=1e-3)
    assert capacity(75 * tail, 70, codec, SHAPE, 100).length == 128
    assert capacity(60 * tail, 70, codec, SHAPE, 1024).tokens == 0
    none = capacity(70 * tail + 3 * page_bytes(codec, SHAPE), 70, codec, SHAPE, 8192)
    assert none.ratio == math.inf
    assert str(none) == "378 tokens in streams of 8,192, where 16 bits would hold none"


def test_how_it_is_said() -> None:
    assert str(Capacity(1_234_567, 8192, 1.875)) == "1,234,567 tokens in streams of 8,192, 1.88 times those of 16 bits"
    assert str(Capacity(1000, 8192, 1.0)) == "1,000 tokens in streams of 8,192"


def test_bits_by_hand() -> None:
    """16 bits: nothing but the open segment on top. Small streams are mostly open segment."""
    by_hand = sum((8 * 128 * 16 + 128 * 16) / n for n in range(1024, 1152)) / 128
    assert bits_per_value(RAW, SHAPE, 1024) == pytest.approx(by_hand)
    int8 = bits_per_value(Stub(8.375), SHAPE, 8192)
    assert int8 == pytest.approx(sum((64 * 128 * 8.375 + 2048) / n for n in range(8192, 8320)) / 128)
    assert bits_per_value(Stub(8.375), SHAPE, 8192, 32) == pytest.approx(int8)
    assert bits_per_value(Stub(8.375), SHAPE, 8192, 1, 39) == pytest.approx(int8 + 38 * 2048 / 8255.5, abs=0.01)
    lead = bits_per_value(Stub(4.375, 1), SHAPE, 8192) - bits_per_value(Stub(4.375), SHAPE, 8192)
    assert lead == pytest.approx(128 * 4.375 / 8255.5, abs=1e-4)
    assert 9 < bits_per_value(Stub(4.375), SHAPE, 256, 32) < 11  # 32 streams of some 300 tokens, as KV.md has it


GIB = 1 << 30


def test_a_gpu_s_pool_is_what_weights_and_reserve_leave() -> None:
    assert gpu_pool(60 * GIB, 16 * GIB, 1, 2 * GIB) == 58 * GIB
    assert gpu_pool(GIB, 16 * GIB, 1, 2 * GIB) == -GIB
    assert gpu_pool(64 * GIB, 16 * GIB, 2, 2 * GIB) == 22 * GIB, "each of two has 40 GiB: 16 for its weights, 2 in reserve"
    assert gpu_pool(30 * GIB, 50 * GIB, 1, 0) == 30 * GIB
    assert step_bytes(544, 4096, 14336, 128256, 32) == 4 * 544 * (32768 + 43008 + 256512) + 12 * 32 * 128256


def test_the_smallest_pool_of_a_demand() -> None:
    demand, codec = Demand(max_running=8, prefill_chunk=256, cached_tails=5, padding=1), Stub(4.375, 1)
    assert demand.tails == 8 + 2 + 2 + 5 + 1
    least = demand.least(codec, SHAPE)
    assert least == 18 * tail_bytes(codec, SHAPE) + 2 * page_bytes(codec, SHAPE), "with the lead page of a first segment"
    assert demand.longest(least - 1, codec, SHAPE) == 0
    assert demand.longest(least, codec, SHAPE) == 255
    assert demand.longest(least + page_bytes(codec, SHAPE), codec, SHAPE) == 383


def test_what_is_told_where_memory_is_short() -> None:
    """70 open segments of 16 bits, and pages of the first codec for three sealed ones."""
    demand, smaller = Demand(32, 512, 32), Stub(4.375, 1, name="small")
    memory = 70 * tail_bytes(RAW, SHAPE) + 3 * page_bytes(RAW, SHAPE)

    def told(context: int, *codecs: Stub, memory: int = memory) -> list[str]:
        return list(what_fits(memory, context, demand, codecs, SHAPE))

    assert told(511, RAW, smaller) == [], "that fits"
    assert told(8192, RAW, smaller) == ["--kv small (1,279 tokens)", "--max-running 16 (2,559 tokens)"]
    assert told(1000, RAW, smaller) == ["--kv small (1,000 tokens)", "--max-running 16 (1,000 tokens)"]
    assert told(8192, smaller, RAW) == ["--max-running 16 (8,192 tokens)"], "16 bits hold less"
    few = 45 * tail_bytes(RAW, SHAPE)
    assert told(8192, RAW, smaller, memory=few) == ["--max-running 4 (511 tokens)"], "no codec shortens open segments"
    assert told(8192, RAW, smaller, memory=30 * tail_bytes(RAW, SHAPE)) == []


def test_the_report() -> None:
    good, bad = rows([Stub(8.375, name="good"), Stub(4.375, name="bad", reason="a reason")], SHAPE)
    assert (bad.codec, bad.refused, bad.own) == ("bad", "a reason", None)
    assert list(good.own) == list(LENGTHS)
    assert all(good.own[n] < good.pool[32][n] < good.pool[1][n] for n in LENGTHS)
    assert good.own[LENGTHS[-1]] == pytest.approx(8.375, abs=0.02)


def test_the_accounts_rule_shortens_segments() -> None:
    assert [ruled_segment(n) for n in (100, 1024, 4096, 8192, 32768, 131072)] == [1, 4, 16, 32, 128, 128]
    assert [round(ruled_bits(64, n), 3) for n in LENGTHS] == [8.173, 8.063, 8.051, 8.016]
