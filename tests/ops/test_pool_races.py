"""The thread pool under the compiler's race detector."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "src" / "pitstop" / "ops" / "csrc"
PROGRAM = Path(__file__).parent / "native" / "pool_stress.cpp"


@pytest.mark.slow
def test_no_race_and_every_task_runs_once(tmp_path: Path) -> None:
    if not (compiler := shutil.which("g++")):
        pytest.skip("needs g++")
    program = tmp_path / "stress"
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{CSRC}"]
    subprocess.run([compiler, *flags, PROGRAM, CSRC / "pool.cpp", "-o", program], check=True)
    result = subprocess.run([program], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr[:2000]
