"""What happens to every HTTP request: an id, a count, and for the API a key."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import AsyncIterator

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pitstop.server.errors import describe, worded
from pitstop.server.keys import match
from pitstop.server.record import Record, current, record
from pitstop.server.service import Service, service_of
from pitstop.server.tracing import TRACE_HEADERS

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Gate:
    """ASGI middleware, and the last net under everything.

    X-Request-Id is taken from the request if it is 1 to 128 visible ASCII characters, else made, and echoed back. When the server
    stops, answers ask for the connection's end: the client's next request goes elsewhere."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        about = self._new_record(scope)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = about.id
                if self._service.stopping.is_set():
                    headers["Connection"] = "close"
                about.route, about.status = getattr(scope.get("route"), "path", "other"), message["status"]
                self._service.metrics.response(about.route, about.status)
            await send(message)

        token = current.set(about)
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log.exception("a request failed")
            about.error = "internal_error"
            if not started:
                status, body, headers = describe(error)
                await JSONResponse(worded(scope["path"], status, body), status, headers)(scope, receive, send_with_id)
        finally:
            about.ended = time.monotonic()
            self._service.finished(about)
            current.reset(token)

    def _new_record(self, scope: Scope) -> Record:
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        traced = {name: headers[name] for name in TRACE_HEADERS if name in headers} if self._service.config.otel else {}
        return Record(request_id, scope["method"], headers=traced)


async def authorize(request: Request) -> None:
    """A route's dependency: raise Refused 401 unless the request bears one of the server's API keys, in OpenAI's header or Anthropic's."""
    given, key = request.headers.get("authorization"), request.headers.get("x-api-key", "")
    record().key = service_of(request).keys.identify(f"Bearer {key}" if given is None else given)


async def take_slot(request: Request) -> AsyncIterator[None]:
    """A route's dependency, after `authorize`: hold one of the key's slots until the answer is out."""
    with service_of(request).keys.slot(record().key):
        yield


async def authorize_admin(request: Request) -> None:
    """A route's dependency: raise Refused 401 unless the request bears the server's admin key."""
    match(request.headers.get("authorization", ""), (service_of(request).config.admin_key,), "the admin key")
