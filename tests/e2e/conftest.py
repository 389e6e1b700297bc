"""One server on the default model for all tests of this folder that ask for it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytest.register_assert_rewrite("servers", "cases.text", "cases.parameters", "cases.requests")

from servers import Server, stop, until  # noqa: E402

MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1"


@contextmanager
def model_server(model_path: Path, *options: str) -> Iterator[Server]:
    """`pitstop serve` as a user starts it, on a free port, with a short context so that prompts beyond it stay affordable."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pitstop.cli", "serve", str(model_path), "--model-name", MODEL_NAME, "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        server = Server(f"http://127.0.0.1:{port}", MODEL_NAME, process)
        until(lambda: process.poll() is not None or is_ready(server), 120)
        assert process.poll() is None, "the server did not come up; its log above says why"
        yield server
    finally:
        stop(process)


def is_ready(server: Server) -> bool:
    try:
        return server.http.get("/readyz").status_code == 200
    except httpx.ConnectError:
        return False


@pytest.fixture(scope="session")
def server(model_path: Path) -> Iterator[Server]:
    with model_server(model_path, "--context", "1024", "--max-waiting", "64") as server:
        yield server
