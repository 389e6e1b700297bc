"""GET /livez, /startupz, /readyz, /healthz and /metrics. They need no key, compute nothing and, but for /healthz?fresh=1, never wait."""

from __future__ import annotations

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from pitstop.server.metrics import CONTENT_TYPE
from pitstop.server.service import service_of


async def livez(http: HTTPRequest) -> Response:
    """200 as long as this process answers."""
    return JSONResponse({"status": "alive"})


async def startupz(http: HTTPRequest) -> Response:
    """200 from the first moment on in which requests were taken; 503 before."""
    started = service_of(http).started
    return JSONResponse({"status": "started" if started else "loading"}, 200 if started else 503)


async def readyz(http: HTTPRequest) -> Response:
    """200 when requests are taken; 503 with the reason: loading, restarting, draining, stopped, or, if so configured, full."""
    service = service_of(http)
    state = service.state
    if state == "ready" and service.config.unready_when_full and service.full:
        state = "full"
    return JSONResponse({"status": state}, 200 if state == "ready" else 503)


async def healthz(http: HTTPRequest, fresh: bool = False) -> Response:
    """200 when the engine answers, and answers right; 503 with the reasons. fresh: after a new look, which may take seconds."""
    service = service_of(http)
    if fresh:
        await service.health.fresh()
    well, report = service.health.report(service.state)
    return JSONResponse(report, 200 if well else 503)


async def metrics(http: HTTPRequest) -> Response:
    """Prometheus' text format."""
    return Response(service_of(http).metrics.text(), media_type=None, headers={"Content-Type": CONTENT_TYPE})
