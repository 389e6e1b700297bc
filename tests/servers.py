"""Server processes for tests, and what a test needs to talk to one."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from nursery import Forked

if TYPE_CHECKING:
    import openai

HERE = Path(__file__).parent
CERTIFICATES = httpx.create_ssl_context()
"""Read once: each client would take longer for that than a server for its answer."""


class Server:
    """A running server: its address, its process, and clients for it."""

    def __init__(self, url: str, model: str, process: subprocess.Popen | Forked, key: str = "none") -> None:
        self.url = url
        self.model = model
        self.process = process
        self.key = key
        self.http = httpx.Client(base_url=url, timeout=60, headers={"Authorization": f"Bearer {key}"}, verify=CERTIFICATES)
        self.says: Callable[[str], str] = "Repeat exactly: {}".format  # a user's turn that makes the model say something like it
        self.endless = "Count: 1 2 3 4 5 6"
        self.printed: list[str] = []  # what `pitstop serve` said of itself

    @cached_property
    def openai(self) -> openai.OpenAI:
        import openai  # takes longer than most tests, of which few use it

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=60)

    @cached_property
    def context(self) -> int:
        return self.http.get("/v1/models").json()["data"][0]["max_model_len"]

    def chat(self, content: object = "hello", **fields) -> httpx.Response:
        """POST a chat request; `content` is the user's turn, fields override everything."""
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0} | fields
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt: object = "hello", **fields) -> httpx.Response:
        body = {"model": self.model, "prompt": prompt, "max_tokens": 8, "temperature": 0} | fields
        return self.post("/v1/completions", body)

    def post(self, path: str, body: object) -> httpx.Response:
        """As JSON of Python's kind: NaN, Infinity and lone surrogates go out as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(path, content=content, headers={"Content-Type": "application/json"})

    def stream(self, path: str, body: dict) -> list[dict]:
        """The events of a stream that ends with [DONE]."""
        response = self.post(path, body | {"stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def chat_stream(self, content: object = "hello", **fields) -> list[dict]:
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
        return self.stream("/v1/chat/completions", body | fields)

    def metric(self, name: str) -> float:
        """A sample by its name with labels, for example `pitstop_requests{stage="running"}`."""
        for line in self.http.get("/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample == name:
                return float(value)
        raise KeyError(name)

    def alive(self) -> bool:
        """Whether an ordinary request works."""
        return self.chat("hello", max_tokens=2).status_code == 200


def refused(response: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> str:
    """Assert OpenAI's error object with this status (and field, and code); its message."""
    assert response.status_code == status, f"{response.status_code}: {response.text[:500]}"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) < 1200
    assert "Traceback" not in error["message"]
    if param is not None:
        assert error["param"] == param, error
    if code is not None:
        assert error["code"] == code, error
    return error["message"]


@contextmanager
def open_stream(server: Server, prompt: str, **fields):
    """An iterator over the events of a stream that has begun."""
    body = {"model": server.model, "prompt": prompt, "max_tokens": 400, "stream": True} | fields
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
        first = next(lines)
        yield (line for lines in ([first], lines) for line in lines)


def assert_books_balance(server: Server) -> None:
    text = server.http.get("/metrics").text
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if not line.startswith("#")}
    finished = sum(value for name, value in values.items() if name.startswith("pitstop_requests_finished_total"))
    in_flight = values['pitstop_requests{stage="queued"}'] + values['pitstop_requests{stage="running"}']
    assert values["pitstop_requests_accepted_total"] == finished + in_flight


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Poll until it holds; AssertionError when it does not within the time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen within {seconds} s"
        time.sleep(0.01)


@contextmanager
def fake_server(
    *options: str,
    worker: tuple[str, ...] = (),
    ready: bool = True,
    key: str = "none",
    group: bool = False,
    log: Path | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[Server]:
    """The front before a worker without a model. ready: wait until it is; else only until it listens. group: a process group of its own.

    log: where its stderr goes; env: variables beside this process's own.
    """
    with open(log, "wb") if log else nullcontext() as errors:
        process = Forked([*options, "--", *worker], errors.fileno() if errors else 2, os.environ | (env or {}), group)
    try:
        listening = re.fullmatch(r"listening (\d+)\n", process.stdout.readline())
        assert listening, "the server did not come up; its log above says why"
        if ready:
            assert process.stdout.readline() == "ready\n"
        server = Server(f"http://127.0.0.1:{listening[1]}", "toy", process, key)
        server.says = "#say {}#".format
        server.endless = "count #slow 5#"
        yield server
    finally:
        stop(process)


@contextmanager
def model_server(model_path: Path, *options: str) -> Iterator[Server]:
    """`pitstop serve` as a user starts it, on a free port, ready."""
    name = "the-model"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pitstop.cli", "serve", str(model_path), "--model-name", name, "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        server = Server(f"http://127.0.0.1:{port}", name, process)
        server.printed = announcement(process)
        yield server
    finally:
        stop(process)


def announcement(process: subprocess.Popen) -> list[str]:
    """What `pitstop serve` prints when it is ready, up to the line to try. Not asked for: that would take the time that loading needs."""
    lines = []
    while (line := process.stdout.readline()) != "Try:\n":
        assert line, "the server did not come up; its log above says why"
        lines.append(line)
    return lines


def children(pid: int) -> list[int]:
    """Process ids of a process's children."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def stop(process: subprocess.Popen | Forked, seconds: float = 20) -> int:
    """SIGTERM, and the exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    finally:
        process.stdout.close()
