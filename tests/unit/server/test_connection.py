"""A connection's bounds that need no server of their own."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import time
from collections.abc import Iterator
from functools import partial
from http.client import HTTPResponse

import httpx
import pytest
import uvicorn
from servers import Server, fake_server
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from pitstop.config import ConnectionLimits
from pitstop.server.connection import Connection

PIECES = 100


def test_a_client_that_is_gone_costs_no_line_of_the_log(caplog: pytest.LogCaptureFixture):
    """It resets the connection while the loop is busy with pieces for it."""
    sent: list[int] = []

    async def serve() -> None:
        gone = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            for piece in range(PIECES):
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                sent.append(piece)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            gone.set()

        config = uvicorn.Config(app, log_config=None)
        config.load()
        make = partial(
            Connection, config=config, server_state=ServerState(), app_state={}, limits=ConnectionLimits(), rejected={"connections": 0}
        )
        loop = asyncio.get_running_loop()
        server = await loop.create_server(make, "127.0.0.1", 0)
        client = socket.create_connection(server.sockets[0].getsockname())
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(10):
            await gone.wait()
        server.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(serve())
    assert len(sent) == PIECES
    assert caplog.records == []


OFFER = b"Connection: Upgrade, HTTP2-Settings%b\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
BODY = json.dumps({"model": "toy", "prompt": "#say yes#", "max_tokens": 5}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(BODY)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server() as server:
        yield server


@pytest.mark.parametrize("cut", [0, 10, len(POST), len(POST) + 40, -len(BODY), -3, None], ids=str)
def test_an_offer_of_http_2_is_passed_over(server: Server, cut: int | None):
    """Some clients make it with each request. Sent whole or in two parts, twice on one connection, then closed as asked."""
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port), timeout=10) as raw:
        for last in (False, True):
            message = POST + OFFER % (b", close" if last else b"") + b"\r\n" + BODY
            raw.sendall(message[:cut])
            if cut is not None:
                time.sleep(0.05)  # so that it is read in parts
                raw.sendall(message[cut:])
            answer = HTTPResponse(raw)
            answer.begin()
            assert (answer.status, json.loads(answer.read())["choices"][0]["text"]) == (200, "yes")
        assert raw.recv(1) == b""


def test_requests_piled_up_with_offers_are_all_answered(server: Server):
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port), timeout=10) as raw:
        raw.sendall((POST + OFFER % b"" + b"\r\n" + BODY) * 3 + b"GET /livez HTTP/1.1\r\nHost: x\r\n" + OFFER % b", close" + b"\r\n")
        data = b""
        while part := raw.recv(1 << 16):
            data += part
    assert data.count(b"HTTP/1.1 200 OK") == 4
