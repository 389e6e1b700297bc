"""POST /admin/drain: stop as on SIGTERM."""

from __future__ import annotations

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from pitstop.server.service import service_of


async def drain(http: HTTPRequest) -> Response:
    """Take no new requests from now on, finish those in flight, and exit. 202 at once; again does no harm."""
    service = service_of(http)
    service.stopping.set()
    return JSONResponse({"status": service.state}, 202)
