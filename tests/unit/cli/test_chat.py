"""`pitstop chat` and `pitstop generate`, with a stand-in for the model and with a server on this machine."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import toy_gguf
from test_cli import run

import pitstop
from pitstop.cli.chat import ask_server, converse
from pitstop.errors import InvalidRequest, Unavailable
from pitstop.types import SamplingParams


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str, terminal: bool = False) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal)


def test_the_history_grows_and_is_forgotten(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[list[dict[str, str]]] = []

    def answer(messages: list[dict[str, str]]) -> Iterator[str]:
        seen.append(list(messages))
        yield from ("answer ", str(len(seen)))

    typed(monkeypatch, "one", "", "two", "/reset", "three", "/quit", "four")
    converse(answer, system="be brief")
    assert capsys.readouterr().out == "answer 1\nanswer 2\nanswer 3\n"
    system = {"role": "system", "content": "be brief"}
    assert seen[1] == [
        system,
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "two"},
    ]
    assert seen[2] == [system, {"role": "user", "content": "three"}]
    assert len(seen) == 3


def test_a_refused_line_is_forgotten(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[list[dict[str, str]]] = []

    def answer(messages: list[dict[str, str]]) -> Iterator[str]:
        seen.append(list(messages))
        if messages[-1]["content"] == "too long":
            raise InvalidRequest("too many tokens")
        yield "fine"

    typed(monkeypatch, "too long", "short", terminal=True)
    converse(answer)
    assert seen[1] == [{"role": "user", "content": "short"}]
    assert "too many tokens" in capsys.readouterr().err
    typed(monkeypatch, "too long", "short")
    with pytest.raises(InvalidRequest):
        converse(answer)


def test_interrupt_ends_the_answer_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[list[dict[str, str]]] = []
    closed: list[bool] = []

    def answer(messages: list[dict[str, str]]) -> Iterator[str]:
        seen.append(list(messages))
        try:
            yield "begun"
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    typed(monkeypatch, "one", "two")
    converse(answer)
    assert capsys.readouterr().out == "begun\nbegun\n"
    assert seen[1][1] == {"role": "assistant", "content": "begun"}
    assert closed == [True, True]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """A stand-in for `pitstop.LLM`, and what it was called with."""
    calls: list[tuple] = []

    class StandIn:
        def __init__(self, model: str, **options: object) -> None:
            calls.append((model, options))

        def generate(self, prompts: list[str], params: SamplingParams) -> list[SimpleNamespace]:
            calls.append((prompts, params))
            return [SimpleNamespace(text="continued")]

        def stream_chat(self, messages: list[dict[str, str]], params: SamplingParams) -> Iterator[str]:
            calls.append((list(messages), params))
            yield from ("Pa", "ris")

    monkeypatch.setitem(vars(pitstop), "LLM", StandIn)  # not setattr: looking for the old one would import torch
    return calls


ENGINE = ["--device", "cpu", "--backend", "ref", "--threads", "2", "--context", "64", "--kv", "int8", "--kv-memory", "1MiB"]
ENGINE += ["--kv-guard", "strict", "--activations", "int8"]
ENGINE_OPTIONS = {"device": "cpu", "backend": "ref", "activations": "int8", "threads": 2}
ENGINE_OPTIONS |= {"codec": "int8", "memory": 1 << 20, "context": 64, "guard": "strict"}
SAMPLING = ["--max-tokens", "9", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "4", "--seed", "7"]
PARAMS = SamplingParams(max_tokens=9, temperature=0.5, top_p=0.9, top_k=4, seed=7)


def test_generate(llm: list[tuple], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(toy_gguf.write_toy_gguf(tmp_path / "toy.gguf"))
    assert run("generate", "Once", "--model", path, *ENGINE, *SAMPLING, "--stop", "a", "--stop", "b") == 0
    assert capsys.readouterr().out == "continued\n"
    assert llm[0] == (path, ENGINE_OPTIONS)
    assert llm[1][0] == ["Once"]
    assert llm[1][1].stop == ("a", "b")
    typed(monkeypatch, "from a pipe")
    assert run("generate", "-", "--model", path, *SAMPLING) == 0
    assert llm[3] == (["from a pipe\n"], PARAMS)


def test_chat(llm: list[tuple], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(toy_gguf.write_toy_gguf(tmp_path / "toy.gguf"))
    typed(monkeypatch, "Capital of France?")
    assert run("chat", "--model", path, *ENGINE, *SAMPLING) == 0
    assert capsys.readouterr().out == "Paris\n"
    assert llm == [(path, ENGINE_OPTIONS), ([{"role": "user", "content": "Capital of France?"}], PARAMS)]


def test_a_parameter_out_of_range_is_refused_before_the_model_loads(llm: list[tuple], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", "Once", "--temperature", "1000") == 1
    assert "temperature must lie in" in capsys.readouterr().err
    assert llm == []


def event(**fields: object) -> str:
    return f"data: {json.dumps(fields)}\n\n"


def delta(**fields: str) -> str:
    return event(choices=[{"index": 0, "delta": fields}])


@dataclass
class Host:
    """A server that answers with `body`, and what it was asked."""

    body: str = ""
    status: int = 200
    url: str = ""
    asked: list[tuple[str, str | None, dict]] = field(default_factory=list)


@pytest.fixture
def host() -> Iterator[Host]:
    hosted = Host()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, json.dumps({"data": [{"id": "toy"}]}) if self.path == "/v1/models" else "{}")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            hosted.asked.append((self.path, self.headers["Authorization"], body))
            self.answer(hosted.status, hosted.body)

        def answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    hosted.url = f"http://127.0.0.1:{server.server_port}"
    yield hosted
    server.shutdown()
    thread.join()
    server.server_close()


MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_asking_a_server(host: Host, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setenv("PITSTOP_API_KEYS", "secret,other")
    host.body = (
        ": a comment\n\n" + delta(role="assistant") + delta(content="Pa") + delta(content="ris") + event(choices=[]) + "data: [DONE]\n\n"
    )
    assert list(ask_server(host.url + ending, MESSAGES, PARAMS)) == ["Pa", "ris"]
    [(path, key, body)] = host.asked
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert body == {
        "model": "toy",
        "messages": MESSAGES,
        "stream": True,
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "seed": 7,
    }


def test_a_server_that_refuses(host: Host) -> None:
    host.status, host.body = 400, json.dumps({"error": {"message": "too long"}})
    with pytest.raises(InvalidRequest, match="400: too long"):
        list(ask_server(host.url, MESSAGES, PARAMS))
    host.status, host.body = 500, "a page that is no JSON"
    with pytest.raises(InvalidRequest, match="500: a page"):
        list(ask_server(host.url, MESSAGES, PARAMS))


def test_a_stream_that_fails(host: Host) -> None:
    host.body = delta(content="Pa") + event(error={"message": "the worker died"})
    pieces = ask_server(host.url, MESSAGES, PARAMS)
    assert next(pieces) == "Pa"
    with pytest.raises(Unavailable, match="the worker died"):
        next(pieces)
    host.body = delta(content="Pa")
    with pytest.raises(Unavailable, match="before the answer was complete"):
        list(ask_server(host.url, MESSAGES, PARAMS))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://", "ftp://127.0.0.1"])
def test_nobody_answers(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    typed(monkeypatch, "hello")
    assert run("chat", "--url", url) == 1
    assert f"pitstop: --url {url}: " in capsys.readouterr().err
