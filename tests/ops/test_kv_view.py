"""A model's view of the cache with sliding windows and soft caps: outputs and stored bytes do not depend on chunks or neighbours."""

from __future__ import annotations

import pytest
import torch
from op_bits import frequencies

from pitstop import codecs
from pitstop.kv.cache import Holding, KVCache
from pitstop.kv.capacity import stream_pages
from pitstop.kv.store import KVStore
from pitstop.kv.view import StepView
from pitstop.ops import dispatch, rope
from pitstop.types import AttentionSpec, KVShape, Request, SamplingParams, Span, StepPlan

HEADS, LENGTH = 4, 420
SHAPE = KVShape(layers=1, kv_heads=2, head_dim=32)
SPECS = {
    "plain": AttentionSpec(scale=0.2),
    "window": AttentionSpec(scale=0.2, window=150, rope=rope.tables(LENGTH, frequencies(32, 10000.0))),
    "softcap": AttentionSpec(scale=0.2, softcap=3.0, rope=rope.tables(LENGTH, frequencies(32, 10000.0)), interleaved=True),
    "both": AttentionSpec(scale=0.2, softcap=3.0, window=37),
}


def drawn(seed: int) -> list[torch.Tensor]:
    """q, k, v of a whole stream."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(LENGTH, heads, SHAPE.head_dim, generator=generator) for heads in (HEADS, SHAPE.kv_heads, SHAPE.kv_heads)]


def run(codec_name: str, spec: AttentionSpec, chunk: int, neighbours: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Stream 0's outputs [LENGTH, heads, dim], and the keys and values of its sealed segments as `decode` gives them."""
    codec = codecs.get(codec_name)
    streams = [drawn(seed) for seed in range(1 + neighbours)]
    count = len(streams) * stream_pages(LENGTH, codec.lead_pages)
    store = KVStore(codec, SHAPE, count, 2 * len(streams) + chunk // 64 + 8, "cpu")
    store.pages.fill_(255)
    store.tails.fill_(torch.nan)
    cache = KVCache(count, store.tails.shape[1], lead_pages=codec.lead_pages, prefix=False)
    view = StepView(store, LENGTH * len(streams), count, "cpu")
    tokens = [[seed] * LENGTH for seed in range(len(streams))]
    holdings = [cache.open(known, LENGTH) for known in tokens]
    outputs = []
    for start in range(0, LENGTH, chunk):
        rows = slice(start, min(start + chunk, LENGTH))
        plan = StepPlan([_span(cache, holding, known, rows) for holding, known in zip(holdings, tokens, strict=True)][::-1])
        view.load(plan)
        q, k, v = (torch.cat([stream[i][rows] for stream in streams[::-1]]) for i in range(3))
        outputs.append(view.attend(0, q, k, v, spec)[-(rows.stop - rows.start) :])
        for holding, known in zip(holdings, tokens, strict=True):
            cache.commit(holding, known)
        cache.check()
    assert store.pages[:, cache.pages.touched :].eq(255).all(), "a page that counts as untouched was written"
    assert store.tails[:, cache.tails.touched :].isnan().all()
    touched = store.touched_bytes(cache.pages.touched, cache.tails.touched)
    assert touched == store.pages[:, : cache.pages.touched].nbytes + store.tails[:, : cache.tails.touched].nbytes
    return torch.cat(outputs), _segments(store, holdings[0].pages)


def _span(cache: KVCache, holding: Holding, known: list[int], rows: slice) -> Span:
    pieces = cache.reserve(holding, rows.stop - rows.start)
    pages = holding.pages + [page for piece in pieces for page in piece.pages]
    request = Request(id=str(known[0]), prompt=known, params=SamplingParams())
    return Span(request, known, rows.start, rows.stop - rows.start, pages, pieces)


def _segments(store: KVStore, pages: list[int]) -> list[torch.Tensor]:
    leads, own = pages[: store.codec.lead_pages], pages[store.codec.lead_pages :]
    first = [store.pages[0, leads[0]] if leads else None] + [None] * len(own)
    parts = [store.codec.decode(lead, store.pages[0, page], SHAPE) for lead, page in zip(first, own, strict=False)]
    return [tensor for pair in parts for tensor in pair]


CASES = [
    # In the reference a window, a cap and a rotation are the same lines whatever the codec.
    pytest.param(codec, spec, backend, marks=[pytest.mark.slow] * (backend == "ref" and codec != "raw16" and spec != "both"))
    for codec in ("raw16", "int8", "int4", "adaptive8", "delta8")
    for spec in SPECS
    for backend in ("cpu", "ref")
]


@pytest.mark.parametrize(("codec", "spec", "backend"), CASES)
def test_outputs_and_stored_segments_do_not_depend_on_chunks_or_neighbours(codec: str, spec: str, backend: str) -> None:
    with dispatch.use(backend):
        whole, segments = run(codec, SPECS[spec], LENGTH, 0)
        assert whole.isfinite().all()
        assert len(segments) == 2 * (LENGTH // 128)
        for chunk, neighbours in ((16, 0), (64, 3), (100, 1), (LENGTH, 2)):
            out, same = run(codec, SPECS[spec], chunk, neighbours)
            assert torch.equal(out, whole), f"chunk {chunk}, {neighbours} neighbours"
            assert all(map(torch.equal, same, segments)), f"chunk {chunk}, {neighbours} neighbours: stored"
