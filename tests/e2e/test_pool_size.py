"""The pool is what its budget says, for small pages and lead pages too, and the longest request that is admitted runs to its end in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams, codecs
from pitstop.errors import ConfigError
from pitstop.kv.capacity import page_bytes, tail_bytes
from pitstop.types import KVShape

SHAPE = KVShape(layers=2, kv_heads=2, head_dim=32)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", head_dim=32)


@pytest.mark.parametrize("codec", codecs.names())
def test_the_pool_fills_its_budget_and_no_more(toy: Path, codec: str) -> None:
    for memory in (3 << 20, 64 << 20):
        engine = LLM(toy, codec=codec, guard="off", memory=memory, max_running=4, cached_tails=2).engine
        store = engine._runner.store
        used = store.pages.nbytes + store.tails.nbytes
        assert memory - page_bytes(codecs.get(codec), SHAPE) < used <= memory
        assert store.pages.shape[1] == engine._cache.pages.total
        assert store.tails.shape[1] == engine._cache.tails.total == 4 + 4 + 2 + 2


@pytest.mark.parametrize("spare", [0, 1, 3])
@pytest.mark.parametrize("codec", ["raw16", "int8", "int4"])
def test_the_longest_request_runs_to_its_end(toy: Path, codec: str, spare: int) -> None:
    kind = codecs.get(codec)
    pages = 1 + kind.lead_pages + spare
    options = {"codec": codec, "guard": "off", "max_running": 1, "prefill_chunk": 128, "cached_tails": 0}
    least = 4 * tail_bytes(kind, SHAPE) + pages * page_bytes(kind, SHAPE)
    llm = LLM(toy, memory=least, **options)
    assert llm.engine.context == (spare + 2) * 128 - 1
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    for _ in range(2):
        [output] = llm.generate([[7] * (llm.engine.context - 20)], params)
        assert (len(output.tokens), output.finish_reason) == (20, "length")
        llm.engine.check()
    if not spare:
        with pytest.raises(ConfigError, match="4 open segments and a sealed one need"):
            LLM(toy, memory=least - 1, **options)


@pytest.mark.parametrize(("codec", "times"), [("raw16", 1), ("int8", 1.855), ("int4", 3.075)])
def test_the_start_says_how_much_fits(toy: Path, codec: str, times: float) -> None:
    engine = LLM(toy, codec=codec, guard="off", memory=256 << 20, context=1024).engine
    assert engine.capacity.ratio == pytest.approx(times, abs=0.01)
    [line] = [note for note in engine.notes() if note.startswith("KV cache: ")]
    assert line == f"KV cache: {codec}, 256 MiB, {engine.capacity}"
