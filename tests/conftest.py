"""Shared fixtures. The default model is looked for where `pitstop models pull` puts it; tests that need it are marked `model`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pitstop.config import cache_dir


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's GGUF file. Fails, not skips, when it is missing: a skipped proof is no proof."""
    path = cache_dir() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        pytest.fail(f"{path} is missing; run `make model`")
    return path
