"""The NEON kernels give the bits of this machine's: the same program, cross-compiled and run by an emulator, prints the same checksums."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "src" / "pitstop" / "ops" / "csrc"
PROGRAM = Path(__file__).parent / "native" / "bits.cpp"
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-static", f"-I{CSRC}"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
X86_TABLES = {"avx512vnni": [*AVX512, "-mavx512vnni"], "avx512": AVX512, "avx2": AVX2, "portable": []}


def cross_compiler() -> str | None:
    names = ("aarch64-linux-gnu-g++", *(f"aarch64-linux-gnu-g++-{version}" for version in range(9, 20)))
    return next(filter(None, map(shutil.which, names)), None)


def build(compiler: str, tables: dict[str, list[str]], folder: Path) -> Path:
    """The program, linked with the drivers and with the kernels of each table."""
    folder.mkdir()
    objects = []
    for table, flags in tables.items():
        objects.append(folder / f"{table}.o")
        source = ["-c", CSRC / "kernels.cpp", f"-DPITSTOP_TABLE={table}", *flags]
        subprocess.run([compiler, *FLAGS, *source, "-o", objects[-1]], check=True)
    drivers = [source for source in CSRC.glob("*.cpp") if source.name not in ("kernels.cpp", "module.cpp")]
    subprocess.run([compiler, *FLAGS, PROGRAM, *drivers, *objects, "-o", folder / "bits"], check=True)
    return folder / "bits"


@pytest.mark.slow
def test_neon_gives_the_same_bits(tmp_path: Path) -> None:
    compiler, emulator, native = cross_compiler(), shutil.which("qemu-aarch64"), shutil.which("c++")
    if platform.machine() != "x86_64" or not (compiler and emulator and native):
        pytest.skip("needs an x86-64 machine with apt packages g++, g++-aarch64-linux-gnu and qemu-user")
    here = subprocess.check_output([build(native, X86_TABLES, tmp_path / "x86")], text=True).splitlines()
    there = subprocess.check_output([emulator, build(compiler, {"neon": []}, tmp_path / "neon")], text=True).splitlines()
    assert len(here) > 100
    assert [line for line in there if line not in here] == []
    assert there == here
