"""What a second worker needs of the machine's memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_worker import KV_MEMORY

from pitstop.config import EngineConfig, KVConfig
from pitstop.engine.protocol import Ready
from pitstop.kv.capacity import Capacity
from pitstop.models.weights.fetch import identity
from pitstop.pool import memory
from pitstop.pool.texts import Opened

MIB = 1 << 20
FREE = 1000 * MIB


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    monkeypatch.setattr(memory, "free_memory", lambda: FREE)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return Opened(str(path), None, 1024, stored=100 * MIB, wide=700 * MIB)


def ready(opened: Opened, shared: int, **about) -> Ready:
    facts = {"weights": identity(Path(opened.path)), "kv_memory": KV_MEMORY} | about
    return Ready(1, 1024, Capacity(1, 1, 1.0), 100, shared=shared, **facts)


def need(opened: Opened, facts: Ready, **config) -> memory.Need:
    return memory.need(EngineConfig(opened.path, kv=KVConfig(memory=8 * MIB), **config), opened, facts, KV_MEMORY // 4)


@pytest.mark.parametrize(("shared", "weights"), [(0, 100), (96, 4), (200, 0)])
def test_weights_that_are_shared_need_no_memory_again_and_their_file_is_not_free(opened: Opened, shared: int, weights: int):
    found = need(opened, ready(opened, shared * MIB))
    assert (found.weights, found.free) == (weights * MIB, FREE - shared * MIB)
    assert (found.kv, found.growth) == (8 * MIB, KV_MEMORY - KV_MEMORY // 4)
    assert found.over == found.weights + found.kv + found.runtime + found.growth + memory.RESERVE - found.free


def test_others_weights_are_not_shared(opened: Opened):
    assert need(opened, ready(opened, 96 * MIB, weights="of another model")).weights == 100 * MIB
    assert need(opened, ready(opened, 96 * MIB), share_weights=False).weights == 100 * MIB
    assert need(opened, ready(opened, 96 * MIB), backend="ref").weights == 700 * MIB


def test_an_accelerators_memory_is_the_workers_own_to_check(opened: Opened):
    assert need(opened, ready(opened, 0, device="cuda")) == memory.Need(0, 0, memory.RUNTIME, 0, FREE)
