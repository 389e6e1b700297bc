"""`pitstop doctor`: what is here, what is missing, and what to type next. Looks at files and never imports torch."""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import psutil
import typer

from pitstop.cli import doctor_kernels
from pitstop.cli.options import Model, show_size
from pitstop.config import ServerConfig, cache_dir, usable_cores
from pitstop.errors import PitstopError
from pitstop.models.weights import fetch

_SERVER = ServerConfig(model_name="")
_COLOURS = {"ok": "green", "note": "yellow", "missing": "red"}
_INSTRUCTIONS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp", "i8mm")


class Finding(NamedTuple):
    """One line of the report. "note" is worth knowing; "missing" keeps the server from starting. `advice`: what to do, or ""."""

    state: Literal["ok", "note", "missing"]
    subject: str
    detail: str
    advice: str = ""


def doctor(
    model: Model = fetch.DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="The address that will be served.")] = _SERVER.host,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port that will be served.")] = _SERVER.port,
    kernels: Annotated[bool, typer.Option("--kernels", help="Only print how attention would be launched on GPUs, and why.")] = False,
) -> None:
    """Check what this machine has and what is missing for `pitstop serve`, and say what to do. Exit status 1 when something is missing."""
    if kernels:
        for line in doctor_kernels.plans():
            print(line)
        return
    findings = list(examine(model, host, port))
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        state = typer.style(f"{finding.state:7}", fg=_COLOURS[finding.state])
        print(f"{state}  {finding.subject:{width}}  {finding.detail}")
        if finding.advice:
            print(f"{'':9}{'':{width}}  → {finding.advice}")
    missing = sum(finding.state == "missing" for finding in findings)
    print(f"{missing} missing" if missing else "Ready: pitstop serve")
    raise typer.Exit(1 if missing else 0)


def examine(model: str, host: str, port: int) -> Iterator[Finding]:
    """Every finding, in the order of the report."""
    yield python()
    yield torch()
    yield kernels()
    yield instructions()
    yield cores()
    yield memory()
    yield disk(model)
    yield weights(model)
    yield cuda()
    yield listening(host, port)


def python() -> Finding:
    return Finding("ok", "Python", f"{platform.python_version()} ({sys.executable})")


def torch() -> Finding:
    try:
        return Finding("ok", "torch", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return Finding("missing", "torch", "not installed", "run `make env`, or pip install -c constraints.txt -e .")


def kernels() -> Finding:
    """The compiled module; the install leaves the reason behind when it could not build it."""
    try:
        native = importlib.import_module("pitstop._native")
    except ImportError as error:
        try:
            reason = importlib.import_module("pitstop._native_missing").REASON
        except ImportError:
            reason = str(error)
        return Finding("note", "native kernels", f"none: {reason}", "apt install g++ python3-dev, then make clean and make serve")
    slow = "" if native.has_fma() else "this CPU has no FMA instruction, which makes them slow"
    return Finding("note" if slow else "ok", "native kernels", native.isa(), slow)


def instructions() -> Finding:
    found = [name for name in _INSTRUCTIONS if name in _cpu_flags()]
    detail = f"{platform.machine()}: {', '.join(found) or 'none of those the native kernels use'}"
    return Finding("ok" if found else "note", "instruction sets", detail)


def _cpu_flags() -> set[str]:
    """As the kernel names them; empty where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    return {flag for line in re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)[:1] for flag in line.split()}


def cores() -> Finding:
    usable, there = usable_cores(), os.cpu_count() or 1
    return Finding("ok", "cores", f"{usable} usable" + (f" of {there}" if usable < there else ""))


def memory() -> Finding:
    memory = psutil.virtual_memory()
    detail = f"{show_size(memory.available)} available of {show_size(memory.total)}"
    if memory.available < 1 << 30:
        return Finding("note", "memory", detail, "close other programs, or lower --kv-memory and --context")
    return Finding("ok", "memory", detail)


def disk(model: str) -> Finding:
    place = cache_dir()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    named = fetch.MODELS.get(model)
    needed = named.size + named.wheel_size if named and not fetch.locate(model).exists() else 0
    detail = f"{show_size(free)} free for {cache_dir()}"
    if free < needed:
        return Finding("missing", "disk", f"{detail}; {model} needs {show_size(needed)}", "free some, or set PITSTOP_HOME to another disk")
    return Finding("ok", "disk", detail)


def weights(model: str) -> Finding:
    """The model's file: here and whole."""
    from pitstop.models.weights.source import open_model

    named = fetch.MODELS.get(model)
    try:
        path = fetch.locate(model)
        if named and not fetch.verified(named, path):
            return Finding("note", "model", f"{model} is not here yet", f"pitstop models pull {model} (pitstop serve does it too)")
        open_model(path).vocabulary()
    except PitstopError as error:
        return Finding("missing", "model", str(error), "fetch the file again, or choose another model")
    size = sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size
    return Finding("ok", "model", f"{path} ({show_size(size)}{', sha256 verified' if named else ', structure checked'})")


def cuda() -> Finding:
    """A GPU counts when its driver is here and torch was built for CUDA."""
    driver = Path("/proc/driver/nvidia/version").exists()
    spec = importlib.util.find_spec("torch")
    version = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    built = re.search(r"^cuda\b.*= '([\d.]+)'", version.read_text(), re.MULTILINE) if version and version.exists() else None
    if driver and built:
        return Finding("ok", "CUDA", f"NVIDIA driver, torch for CUDA {built[1]}")
    if driver:
        return Finding("note", "CUDA", "NVIDIA driver, but this torch has no CUDA", "install a CUDA build of torch to use --device cuda")
    return Finding("note", "CUDA", "no NVIDIA driver: the CPU is used")


def listening(host: str, port: int) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            busy = error.errno == errno.EADDRINUSE
            advice = "stop what listens there, or choose another --port" if busy else "choose another --host or --port"
            return Finding("missing", "port", f"{host}:{port}: {error.strerror}", advice)
    return Finding("ok", "port", f"{host}:{port} is free")
