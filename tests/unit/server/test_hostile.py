"""Clients that are slow, greedy or broken, over raw sockets: each costs a bounded amount, and nobody else notices."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from servers import Server, fake_server, refused, until

from pitstop.errors import ConfigError, DeadlineExceeded
from pitstop.pool import Stream
from pitstop.pool.stream import MAX_BACKLOG, Delta
from pitstop.server.connection import RESERVE

HEAD_TIMEOUT, STALL_TIMEOUT, CONNECTIONS = 0.5, 0.5, 20
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    """A server that has little patience."""
    options = {"--head-timeout": HEAD_TIMEOUT, "--stall-timeout": STALL_TIMEOUT, "--max-connections": CONNECTIONS}
    with fake_server(*(str(word) for pair in options.items() for word in pair)) as server:
        yield server


def connect(server: Server, receive_buffer: int = 0) -> socket.socket:
    raw = socket.socket()
    if receive_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.settimeout(10)
    raw.connect(("127.0.0.1", httpx.URL(server.url).port))
    return raw


def everything(raw: socket.socket) -> bytes:
    """What comes until the server closes; b"" for a reset."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := raw.recv(1 << 16):
            data += part
    raw.close()
    return data


def answer(data: bytes) -> tuple[int, str]:
    """Status and error code of the first answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def count(server: Server, reason: str) -> float:
    return server.metric(f'pitstop_requests_rejected_total{{reason="{reason}"}}')


def test_a_head_that_trickles_in_is_cut_off(strict: Server):
    raw, start = connect(strict), time.monotonic()
    raw.sendall(b"GET /livez HTTP/1.1\r\n")
    with contextlib.suppress(OSError):
        while time.monotonic() - start < 5:
            raw.sendall(b"X")
            time.sleep(0.05)
    assert HEAD_TIMEOUT <= time.monotonic() - start < 2
    second = connect(strict)
    second.sendall(GET + b"GET /livez")  # the same on a connection that was good before
    data = everything(second)
    assert data.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in data
    assert count(strict, "head") >= 2


@pytest.mark.parametrize(
    "flood",
    [
        b"".join(b"X-%d: %d\r\n" % (i, i) for i in range(40_000)),
        b"X: " + b"x" * 1_000_000,
        b"".join(b"X:\r\n" for _ in range(200_000)),
    ],
)
def test_a_flood_of_headers_is_refused(strict: Server, flood: bytes):
    raw = connect(strict)
    with contextlib.suppress(OSError):  # it does not wait for the end
        raw.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + flood)
    data = everything(raw)
    if data:  # a reset may overtake the answer
        assert answer(data) == (431, "head_too_large")
    assert strict.alive()


def test_a_long_url_is_refused_and_an_ordinary_head_is_not(strict: Server):
    raw = connect(strict)
    raw.sendall(b"GET /" + b"x" * 66_000 + b" HTTP/1.1\r\n\r\n")
    assert answer(everything(raw)) == (431, "head_too_large")
    assert strict.http.get("/livez", headers={"Cookie": "x" * 60_000}).status_code == 200


def test_what_is_not_http_gets_a_small_error(strict: Server):
    raw = connect(strict)
    raw.sendall(b"\x16\x03\x01 hello?\r\n\r\n")
    assert answer(everything(raw)) == (400, "invalid_http")


def test_pipelined_requests_are_answered_in_their_order(strict: Server):
    raw = connect(strict)
    raw.sendall(GET * 9 + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    data = everything(raw)
    assert data.count(b"HTTP/1.1 200") == data.count(b'{"status":"alive"}') == 10


def test_requests_that_pile_up_behind_one_are_bounded(strict: Server):
    raw = connect(strict)
    body = json.dumps({"model": "toy", "prompt": "#slow 50#", "max_tokens": 200}).encode()
    raw.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    until(lambda: strict.metric("pitstop_requests_running") == 1, 5)
    raw.sendall(GET * 17)
    assert everything(raw) == b""  # nothing may be written into the answer under way
    until(lambda: strict.metric("pitstop_requests_running") == 0, 5)


def test_a_body_that_follows_its_answer_for_ever_is_cut_off(strict: Server):
    raw, start = connect(strict), time.monotonic()
    raw.sendall(b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
    assert raw.recv(1000).startswith(b"HTTP/1.1 404")
    with contextlib.suppress(OSError):
        while time.monotonic() - start < 5:
            raw.sendall(b"x")
            time.sleep(0.05)
    assert HEAD_TIMEOUT <= time.monotonic() - start < 2


def big_stream(server: Server) -> socket.socket:
    """A stream of some 2 MB whose reader has taken nothing yet."""
    raw = connect(server, receive_buffer=4096)
    wish = {"model": "toy", "messages": [{"role": "user", "content": "#burst 20#"}], "max_tokens": 300, "n": 8, "stream": True}
    body = json.dumps(wish | {"logprobs": True, "top_logprobs": 20}).encode()
    raw.sendall(POST % (b"chat/completions", len(body)) + body)
    return raw


def test_a_reader_that_takes_nothing_is_reset_and_holds_nothing(strict: Server):
    before = strict.metric('pitstop_process_anonymous_bytes{process="front"}')
    stalled = count(strict, "stalled")
    raws = [big_stream(strict) for _ in range(3)]
    worst = 0.0
    while count(strict, "stalled") < stalled + 3:
        start = time.monotonic()
        assert strict.complete("#say hi#").status_code == 200
        worst = max(worst, time.monotonic() - start)
    assert worst < 2  # the streams are made on the same two cores
    assert strict.metric('pitstop_process_anonymous_bytes{process="front"}') - before < 100 << 20
    until(lambda: strict.metric("pitstop_requests_running") == 0, 5)
    assert not any(b"[DONE]" in everything(raw) for raw in raws)


def test_a_reader_that_is_slow_but_reads_gets_everything(strict: Server):
    raw, data = big_stream(strict), b""
    raw.settimeout(10)
    while not data.endswith(b"0\r\n\r\n"):
        part = raw.recv(1 << 18)
        assert part, "the connection was cut"
        data += part
        time.sleep(0.002)
    assert b"data: [DONE]" in data
    raw.close()


def test_connections_are_bounded_and_probes_get_through(strict: Server):
    others = []
    try:
        until(lambda: len(others) >= CONNECTIONS or others.append(connect(strict)) is not None, 5)
        with httpx.Client(base_url=strict.url) as late:
            refusal = late.post("/v1/completions", json={"model": "toy", "prompt": "x"})
            refused(refusal, 503, code="too_many_connections")
            assert (refusal.headers["connection"], refusal.headers["retry-after"]) == ("close", "1")
        for path in ("/livez", "/readyz", "/metrics"):
            assert httpx.get(strict.url + path).status_code == 200
        others += [connect(strict) for _ in range(RESERVE + 5)]
        others[-1].settimeout(5)
        assert everything(others[-1]) == b""  # not even a place to say so
    finally:
        for raw in others:
            raw.close()
    until(lambda: httpx.post(strict.url + "/v1/completions", json={"model": "toy", "prompt": "#say x#"}).status_code == 200, 5)
    assert count(strict, "connections") >= 1


def test_a_crowd_of_slow_clients_slows_nobody():
    with fake_server("--head-timeout", "1") as server:
        crowd = [connect(server) for _ in range(200)]
        latencies = []
        for number in range(30):
            for raw in crowd[number::30]:
                with contextlib.suppress(OSError):
                    raw.sendall(b"POST /v1/completions HTTP/1.1\r\nX-Slow: ")
            start = time.monotonic()
            assert server.complete("#say hi#").status_code == 200
            latencies.append(time.monotonic() - start)
        assert sorted(latencies)[len(latencies) // 2] < 0.25
        for raw in crowd:
            raw.close()


def test_a_peer_that_vanished_is_noticed_by_the_system(strict: Server):
    from pitstop.server.run import listen

    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted = listener.accept()[0]
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            probes = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) * accepted.getsockopt(
                socket.IPPROTO_TCP, socket.TCP_KEEPINTVL
            )
            assert idle + probes <= 60
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


def test_what_waits_for_a_reader_is_bounded():
    async def overrun() -> None:
        stream = Stream(["a"], lambda stream: stream.end(None))
        for _ in range(MAX_BACKLOG + 1):
            stream.push(Delta("a", [1], "x"))
        assert stream.cancelled
        with pytest.raises(DeadlineExceeded, match="read too slowly"):
            async for _ in stream:
                pass

    import asyncio

    asyncio.run(overrun())


def test_more_connections_than_open_files_are_refused(monkeypatch: pytest.MonkeyPatch):
    from pitstop.server.run import _allow_handles

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1000))
    raised = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    _allow_handles(900)
    assert raised == [(900, 1000)]
    with pytest.raises(ConfigError, match="ulimit"):
        _allow_handles(1001)
