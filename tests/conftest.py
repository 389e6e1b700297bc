"""Shared fixtures. The default model is looked for where `pitstop models pull` puts it; tests that need it are marked `model`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pitstop.config import cache_dir

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background, and so it would be in what tests start and interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []

if CORES and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
    # Of several processes each has a core of its own: an engine takes as many threads as there are cores, and threads that wait spin. So do
    # torch's, which count the cores when they are first imported, be it by another conftest.py: hence here.
    os.sched_setaffinity(0, {CORES[int(worker.removeprefix("gw")) % len(CORES)]})
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@pytest.fixture
def all_cores() -> Iterator[None]:
    """For threads that are to run side by side, also where each process has but one core."""
    if not CORES:
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    yield
    os.sched_setaffinity(0, own)


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's GGUF file. Fails, not skips, when it is missing: a skipped proof is no proof."""
    path = cache_dir() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        pytest.fail(f"{path} is missing; run `make model`")
    return path
