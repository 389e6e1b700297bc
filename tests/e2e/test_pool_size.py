"""The pool is what its budget says, for small pages and lead pages too, and the longest request that is admitted runs to its end in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams, codecs
from pitstop.config import EngineConfig, KVConfig, resolve
from pitstop.engine.memory import RESERVE, on_gpu
from pitstop.errors import ConfigError
from pitstop.kv.capacity import Demand, page_bytes, step_bytes, tail_bytes
from pitstop.models.config import ModelConfig
from pitstop.models.rope import Rope
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


GIB = 1 << 30
EIGHT = ModelConfig("llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 1e-5, Rope(5e5), 128**-0.5, False)
WEIGHTS = 15 * GIB
DEMAND = Demand(32, 512, 32, 1)
STEP = RESERVE + step_bytes(544, 4096, 14336, 128256, 32)


def on_a_gpu(free: int, codec: str = "raw16", memory: int = 0) -> tuple[EngineConfig, list[str]]:
    config = resolve(EngineConfig("8B", kv=KVConfig(codec, memory)), model_context=131072, cuda=True, free_memory=free)
    return on_gpu(config, EIGHT, codecs.get(codec), DEMAND, free, WEIGHTS)


def test_a_gpu_s_pool_is_all_that_is_free_but_the_reserve():
    config, notes = on_a_gpu(64 * GIB)
    assert (config.kv.memory, config.kv.context, notes) == (64 * GIB - STEP, 131072, [])
    assert on_a_gpu(64 * GIB, memory=30 * GIB)[0].kv.memory == 30 * GIB


def test_a_gpu_that_holds_a_part_of_the_context_serves_that_and_says_how_it_would_hold_more():
    """71 tails of 16 MiB; beside them 100 segments in 16 bits, 193 in 8.25, 376 in 4.25 of which one leads."""
    free = STEP + 171 * (16 << 20)
    config, [note] = on_a_gpu(free)
    assert config.kv.context == 101 * 128 - 1
    assert note == (
        f"Context 12,927 of 131,072 tokens: weights take 15.00 GiB of {(free + WEIGHTS) / GIB:.2f} GiB, and {STEP / GIB:.2f} GiB stay free "
        "for steps and graphs. More by --kv int8 (24,831 tokens) or --kv int4 (48,127 tokens) or --max-running 16 (14,975 tokens)"
    )


def test_a_gpu_that_is_too_small_says_what_would_fit():
    with pytest.raises(ConfigError) as error:
        on_a_gpu(STEP + 60 * (16 << 20))
    assert str(error.value).endswith(
        "71 open segments and a sealed one need 1152MiB, 16 MiB each open one. Try --max-running 16 (767 tokens)"
    )
    assert str(error.value).startswith("no room for the KV cache: weights take 15.00 GiB of 17.66 GiB, and 1.72 GiB stay free")
    with pytest.raises(ConfigError, match="Try --max-running 1, fewer bits a weight, or a smaller model"):
        on_a_gpu(GIB)
    with pytest.raises(ConfigError, match=r"--kv-memory 2\.00 GiB does not fit: .*; at most 0\.94 GiB do"):
        on_a_gpu(STEP + 60 * (16 << 20), memory=2 * GIB)
