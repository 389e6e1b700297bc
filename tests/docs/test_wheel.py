"""The wheel holds every file of the package but the kernels' sources: modules, the cases and texts of verify, pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.network
def test_the_wheel_holds_the_whole_package(tmp_path: Path) -> None:
    """Made without the kernels, which take minutes to compile and hold none of these files."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--config-settings", "wheel.cmake=false", "--wheel-dir", tmp_path, ROOT]
    subprocess.run(command, check=True, timeout=240)
    (wheel,) = tmp_path.glob("pitstop-*.whl")
    files = {file.relative_to(ROOT / "src") for file in (ROOT / "src" / "pitstop").rglob("*") if file.is_file()}
    made = {file for file in files if "__pycache__" in file.parts or file.suffix == ".so"}
    sources = {file for file in files if "csrc" in file.parts}
    held = {Path(name) for name in ZipFile(wheel).namelist() if name.startswith("pitstop/")}
    assert held == files - made - sources
    assert sum(file.suffix == ".yaml" for file in held) == 18
