"""The client against scripted bytes: what it takes for a token, for an end and for an error."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pitstop.verify.load.client import Client
from pitstop.verify.load.null_server import events
from pitstop.verify.load.records import Dialect, Job, Record, Work

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
JOB = Job(3, 0.5, "short", "Hello", 4)


@contextmanager
def scripted(*parts: bytes | float) -> Iterator[str]:
    """A server that answers one request with these bytes; a number is a pause in seconds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                for part in parts:
                    time.sleep(part) if isinstance(part, float) else connection.sendall(part)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def ask(url: str, path: str = "/v1/completions", timeout: float = 5.0) -> Record:
    work = Work(url=url, headers={}, model="m", dialect=Dialect(path), jobs=[], timeout=timeout)
    return Client(work).ask(JOB, time.perf_counter() - 1.0, 0.5)


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_whole_answer(path: str) -> None:
    first, *rest = events(4, "chat" in path)
    whole = b"".join(rest)
    body = chunked(first, whole[:50], whole[50:], b": a comment\n\n")  # pieces of HTTP need not be events
    with scripted(SSE + b"Transfer-Encoding: chunked\r\n\r\n", body) as url:
        record = ask(url, path)
    assert (record.error, record.finish, record.answer_tokens, record.text) == ("", "length", 4, " word" * 4)
    assert len(record.pieces) == 4
    assert 1.0 <= record.sent <= record.first <= record.end < 6.0
    assert (record.intended, record.number, record.kind, record.max_tokens) == (0.5, 3, "short", 4)


def test_times_are_those_of_the_pieces() -> None:
    one, two, *rest = events(2, False)
    with scripted(SSE + b"\r\n", 0.3, one, 0.5, two, b"".join(rest)) as url:
        record = ask(url)
    assert record.first - record.sent >= 0.3
    assert record.pieces[1] - record.pieces[0] >= 0.4


def test_empty_text_is_no_token() -> None:
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    with scripted(SSE + b"\r\n", role, 0.3, b"".join(events(2, True))) as url:
        record = ask(url, "/v1/chat/completions")
    assert len(record.pieces) == 2
    assert record.first - record.sent >= 0.3


@pytest.mark.parametrize(
    ("parts", "error", "detail"),
    [
        ((b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nbusy",), "HTTP 429", "busy"),
        ((b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",), "not SSE", "application/json"),
        ((SSE + b"\r\n" + b"".join(events(4, False)[:2]),), "cut stream", "2 pieces"),
        ((SSE + b"Transfer-Encoding: chunked\r\n\r\n", chunked(*events(4, False)[:3])[:-5]), "cut stream", ""),
        ((SSE + b'\r\ndata: {"error": {"message": "out of memory"}}\n\n',), "error event", "out of memory"),
        ((SSE + b"\r\ndata: [1, 2\n\n",), "not SSE", "[1, 2"),
        ((SSE + b"\r\n" + events(4, False)[0] + b"data: [DONE]\n\n",), "cut stream", "finish_reason"),
        ((b"",), "connection", ""),
        ((b"nonsense\r\n\r\n",), "connection", ""),
    ],
)
def test_errors_by_kind(parts: tuple[bytes, ...], error: str, detail: str) -> None:
    with scripted(*parts) as url:
        record = ask(url)
    assert record.error == error
    assert detail in record.detail


def test_a_timeout() -> None:
    with scripted(SSE + b"\r\n", events(2, False)[0], 1.0) as url:
        record = ask(url, timeout=0.3)
    assert record.error == "timeout"


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert ask(f"http://127.0.0.1:{port}").error == "connection"
