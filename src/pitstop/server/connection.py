"""One client's connection, and the bounds on what it may cost before and after the app sees a request.

uvicorn's protocol has none of them: a head may grow for ever and never end, requests may pile up behind one that runs, a body may follow
its answer for ever, and a client that takes nothing keeps what it was sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

import httptools
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from pitstop.config import ConnectionLimits
from pitstop.server.errors import Refused, describe

log = logging.getLogger(__name__)

RESERVE = 64
"""Connections beyond the limit that are still accepted, for probes and scrapes: whoever else comes by them is told to come later."""

PROBES = ("/livez", "/startupz", "/readyz", "/healthz", "/metrics")

_UPGRADE = (b"upgrade", b"http2-settings")
"""Headers by which a client asks for another protocol; Connection names them."""


class _Violation(Exception):
    """Raised in a parser's callback; the parser stops, and uvicorn calls send_400_response."""


class Connection(HttpToolsProtocol):
    """HTTP/1.1 for one client within `ConnectionLimits`."""

    def __init__(self, *arguments: Any, limits: ConnectionLimits, rejected: dict[str, int], **named: Any) -> None:
        """rejected: counts by reason; "connections", "head" and "stalled" are used here."""
        super().__init__(*arguments, **named)
        self._limits = limits
        self._rejected = rejected
        self._data = b""  # what is being parsed
        self._in_head = False
        self._head_size = 0
        self._refusal = Refused(400, "this is not HTTP/1.1", "invalid_http")
        self._answered: RequestResponseCycle | None = None
        self._due: asyncio.TimerHandle | None = None  # when the head, or the rest of an answered request's body, must have come
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        crowd = len(self.connections) - self._limits.max_connections
        if crowd > 0:
            self._rejected["connections"] += 1
            self.app = _OnlyProbes(self.app)
        if crowd > RESERVE:
            transport.abort()
            return
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # uvicorn tells only the request that came last; of pipelined ones another is being answered.
        self.pipeline.clear()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        # uvicorn leaves the keep-alive timer of a connection that was reset, and so all that its last request held, until it is due.
        self._unset_keepalive_if_required()
        self._settle()
        self._unstall()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, _UntilClosed(app, self.transport, cycle))

    # What comes

    def data_received(self, data: bytes) -> None:
        self._data = data
        if self._in_head:
            self._head_size += len(data)
        if self.cycle is None or self.cycle.response_complete:
            self._owe(self._limits.head_timeout)
        super().data_received(data)
        self._data = b""
        if self._in_head:
            self._owe(self._limits.head_timeout)
        if self._in_head and self._head_size > self._limits.max_head and not self.transport.is_closing():
            self._refuse_head()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_size = True, 0

    def on_headers_complete(self) -> None:
        if self._declines():
            return
        self._in_head = False
        self._settle()
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self._limits.max_head:
            self._refuse_head()
            raise _Violation
        if len(self.pipeline) >= self._limits.max_pipelined:
            raise _Violation
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._declines():
            return
        self._settle()
        super().on_message_complete()

    def _declines(self) -> bool:
        """Whether the head asks for another protocol, which we have not: some clients offer HTTP/2 with each request."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """It is served as if it had not asked (RFC 9110, 7.8). The parser has stopped behind its head; another one reads it."""
        if not self._declines():
            return
        rest = self._data[sys.exception().args[0] :]
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(option for option in value.split(b",") if option.strip().lower() not in _UPGRADE)
            if name not in _UPGRADE and (value or name != b"connection"):
                lines.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_later()
        elif self.cycle.more_body and self.cycle.response_complete:  # the body of a request that was answered without it
            self._owe(self._limits.head_timeout)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not a request, or close at once where an answer is under way: it would be taken for a part of that."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
            return
        status, error, _ = describe(self._refusal)
        body = json.dumps(error).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
        self._abort_later()

    def _refuse_head(self) -> None:
        self._rejected["head"] += 1
        self._refusal = Refused(431, f"the request line and headers exceed {self._limits.max_head} bytes; send less", "head_too_large")

    def _owe(self, seconds: float) -> None:
        """The client owes us something, for so long."""
        if self._due is None:
            self._due = self.loop.call_later(seconds, self._overdue)

    def _settle(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _overdue(self) -> None:
        self._due = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # it is we who do not read
            self._owe(self._limits.head_timeout)
            return
        if self.cycle is not None and self.cycle.response_complete and not self._in_head:  # a body that nobody wants
            self.transport.close()
            self._abort_later()
            return
        self._rejected["head"] += 1
        self._refusal = Refused(408, f"the request's head did not come within {self._limits.head_timeout:g} s", "head_timeout")
        self.send_400_response("")

    # What goes

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unstall()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_later()

    def _watch(self, left: int) -> None:
        self._unstall()
        self._stall = self.loop.call_later(self._limits.stall_timeout, self._check_stall, left)

    def _check_stall(self, before: int) -> None:
        """A client that took nothing for so long gets the connection reset, which cancels its request."""
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._watch(left)
            return
        self._rejected["stalled"] += 1
        log.info("a client took nothing of its answer for %g s; its connection is reset", self._limits.stall_timeout)
        self.transport.abort()

    def _unstall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _abort_later(self) -> None:
        """A closed connection lives on until its last bytes are taken, but not for ever."""
        if self._stall is None:
            self._watch(self.transport.get_write_buffer_size())


class _UntilClosed:
    """The app, sending nothing to a client that is gone. uvicorn learns of that a turn of the loop later; for every piece that comes until
    then asyncio would log a warning."""

    def __init__(self, app: ASGIApp, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._transport = transport
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def until_closed(message: Message) -> None:
            if self._transport.is_closing():
                self._cycle.disconnected = True
            await send(message)

        await self._app(scope, receive, until_closed)


class _OnlyProbes:
    """The app as a connection beyond the limit sees it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        headers = {"Connection": "close", "Retry-After": "1"}
        status, body, _ = describe(Refused(503, "too many connections are open; try again in 1 s", "too_many_connections"))
        await JSONResponse(body, status, headers)(scope, receive, send)
