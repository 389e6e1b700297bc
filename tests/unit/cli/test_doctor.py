"""`pitstop doctor` and `pitstop models`: each thing that can be missing is found, and said with what to do."""

from __future__ import annotations

import builtins
import importlib.metadata
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import toy_gguf
from test_cli import run

from pitstop.cli import doctor
from pitstop.models.weights import fetch


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PITSTOP_HOME", str(tmp_path / "home"))
    return toy_gguf.write_toy_gguf(tmp_path / "toy.gguf")


@pytest.fixture
def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_all_is_well(toy: Path, free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", str(toy), "--port", str(free_port)) == 0
    report = capsys.readouterr().out
    for subject in ("Python", "torch", "native kernels", "instruction sets", "cores", "memory", "disk", "model", "CUDA", "port"):
        assert f"  {subject}  " in report
    assert report.endswith("Ready: pitstop serve\n")


def test_something_is_missing(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy.write_bytes(toy.read_bytes()[:-1])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run("doctor", str(toy), "--port", str(port)) == 1
    report = capsys.readouterr().out
    assert "tensor output_norm.weight: the file is truncated" in report
    assert f"127.0.0.1:{port}: Address already in use" in report
    assert "→ stop what listens there, or choose another --port" in report
    assert report.endswith("2 missing\n")


def test_doctor_imports_no_torch(toy: Path, free_port: int) -> None:
    code = (
        "import sys; from pitstop.cli import doctor\n"
        f"print(len(list(doctor.examine({str(toy)!r}, '127.0.0.1', {free_port}))), 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "10 False\n"


def test_a_model_that_is_not_here_yet(toy: Path) -> None:
    finding = doctor.weights(fetch.DEFAULT_MODEL)
    assert finding.state == "note"
    assert f"pitstop models pull {fetch.DEFAULT_MODEL}" in finding.advice


def test_an_altered_model(toy: Path) -> None:
    path = fetch.locate(fetch.DEFAULT_MODEL)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF, but not really")
    finding = doctor.weights(fetch.DEFAULT_MODEL)
    assert finding.state == "missing"
    assert "this is not smollm2-135m-instruct" in finding.detail


def test_no_such_model(toy: Path) -> None:
    assert doctor.weights("nonsense").state == "missing"


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert doctor.torch().state == "missing"


def test_no_kernels_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pitstop._native", None)
    missing = type(builtins)("pitstop._native_missing")
    missing.REASON = "no compiler was found"
    monkeypatch.setitem(sys.modules, "pitstop._native_missing", missing)
    finding = doctor.kernels()
    assert (finding.state, finding.detail) == ("note", "none: no compiler was found")
    assert "apt install g++" in finding.advice


def test_little_disk_and_memory(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage, memory = doctor.shutil.disk_usage("."), psutil.virtual_memory()
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=1 << 20))
    assert doctor.disk(fetch.DEFAULT_MODEL).state == "missing"
    assert doctor.disk(str(toy)).state == "ok"
    assert doctor.memory().state == "note"


def test_models_list(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models", "list") == 0
    listed = capsys.readouterr().out
    assert listed.startswith("smollm2-135m-instruct (default)\n")
    assert "not here yet: pitstop models pull smollm2-135m-instruct" in listed


def test_models_pull_prints_the_path(toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def pull(name: str, progress: fetch.Progress) -> Path:
        progress(50, 100)
        progress(100, 100)
        return Path("/models") / name

    monkeypatch.setattr(fetch, "pull", pull)
    assert run("models", "pull") == 0
    out, err = capsys.readouterr()
    assert out == "/models/smollm2-135m-instruct\n"
    assert err.startswith("Fetching smollm2-135m-instruct (88.57 MiB, Apache-2.0) to ")
    assert err.count("\n") == 1  # no bar where there is no terminal
