"""GET /livez, /readyz and /metrics. They need no key and never wait."""

from __future__ import annotations

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from pitstop.server.metrics import CONTENT_TYPE
from pitstop.server.service import service_of


async def livez(http: HTTPRequest) -> Response:
    """200 as long as this process answers."""
    return JSONResponse({"status": "alive"})


async def readyz(http: HTTPRequest) -> Response:
    """200 when requests are taken; 503 with the reason: loading, restarting, draining or stopped."""
    state = service_of(http).state
    return JSONResponse({"status": state}, 200 if state == "ready" else 503)


async def metrics(http: HTTPRequest) -> Response:
    """Prometheus' text format."""
    return Response(service_of(http).metrics.text(), media_type=None, headers={"Content-Type": CONTENT_TYPE})
