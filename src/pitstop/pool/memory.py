"""Whether a second worker has room beside the first. No torch."""

from __future__ import annotations

import contextlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import psutil

from pitstop.config import EngineConfig
from pitstop.engine.protocol import Ready
from pitstop.models.weights.fetch import identity
from pitstop.pool.texts import Opened
from pitstop.types import SEGMENT

RUNTIME = 320 << 20
"""Bytes of a worker beside weights, KV and logits: interpreter, libraries, a step's activations (some 250 MiB were seen)."""

RESERVE = 64 << 20
"""Bytes that stay free."""

_LOGITS = 16  # bytes for each of a segment's logits: the guard holds two models' at once
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of host memory. growth: what the worker that serves may still take of its own KV pool, free: what there is, both before it
    lends the new one of its cache.
    """

    weights: int
    kv: int
    runtime: int
    growth: int
    free: int
    lent: int = 0

    @property
    def over(self) -> int:
        """Bytes too many; not positive when all fits."""
        return self.weights + self.kv + self.runtime + self.growth + RESERVE - self.free - self.lent

    def __str__(self) -> str:
        parts = ((self.weights, "weights"), (self.kv, "KV"), (self.runtime, "runtime"), (self.growth, "growth of the present KV cache"))
        return f"{', '.join(f'{size / 2**20:.0f} MiB {name}' for size, name in parts)}; {(self.free + self.lent) / 2**20:.0f} MiB are free"


def need(config: EngineConfig, opened: Opened, facts: Ready, kv_touched: int) -> Need:
    """Of a worker of `config` for the model `opened`, beside one with these facts that has been given `kv_touched` bytes for KV so far.

    Weights that it shares with that one need no memory again.
    """
    if facts.device != "cpu":  # the accelerator's memory is the worker's own to check: it says so when it cannot start
        return Need(0, 0, RUNTIME, 0, free_memory())
    native = config.backend != "ref" and importlib.util.find_spec("pitstop._native") is not None
    runtime = RUNTIME + _LOGITS * SEGMENT * facts.vocab_size
    growth = max(0, facts.kv_memory - kv_touched)
    weights = opened.stored if native else opened.wide
    if facts.shared and config.share_weights and native and identity(Path(opened.path)) == facts.weights:
        weights = max(0, weights - facts.shared)
    free = free_memory() - facts.shared  # a mapped file counts as free, and that worker needs it
    return Need(weights, config.kv.memory, runtime, growth, free)


def free_memory() -> int:
    """Bytes that a new process may take without anybody's harm: of the machine, and of the control group where that has a limit."""
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError, IndexError):
        group = _CGROUP / Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2].lstrip("/")
        for folder in {group, _CGROUP}:
            with contextlib.suppress(OSError, ValueError):
                limit, used = int((folder / "memory.max").read_text()), int((folder / "memory.current").read_text())
                statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                free = min(free, limit - used + int(statistics["inactive_file"]) + int(statistics["active_file"]))
    return max(0, free)
