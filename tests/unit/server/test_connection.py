"""A connection's bounds that need no server of their own."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from functools import partial

import pytest
import uvicorn
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
