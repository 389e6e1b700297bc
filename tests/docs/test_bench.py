"""Scripts of bench/ that look inside the engine still run, and end in their line of JSON. What they measure is not looked at."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
KV = "--quick", "--no-peers", "--codecs", "int8"


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "words",
    [
        ("kv_quality.py", *KV, "--no-needle", "--texts", "english", "--png", "kv.png", "--model"),
        ("kv_speed.py", *KV, "--contexts", "512", "--model"),
        ("profile_step.py", "--steps", "3", "--model"),
        ("attention.py", "--contexts", "60,300", "--streams", "1,3", "--seconds", "0.01"),
    ],
    ids=lambda words: words[0],
)
def test_it_runs(words: tuple[str, ...], model_path: Path, tmp_path: Path):
    model = [model_path] if words[-1] == "--model" else []
    command = [sys.executable, BENCH / words[0], *words[1:], *model, "--threads", "2"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    figures = json.loads(result.stdout.splitlines()[-1])
    assert numbers(figures)
    assert all(math.isfinite(number) for number in numbers(figures))


def numbers(figures: object) -> list[float]:
    """All that a JSON value holds."""
    if isinstance(figures, dict | list):
        return [number for part in (figures.values() if isinstance(figures, dict) else figures) for number in numbers(part)]
    return [figures] if isinstance(figures, int | float) else []
