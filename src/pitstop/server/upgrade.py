"""POST, GET and DELETE /admin/upgrade: another model, codec or version takes over while requests are served."""

from __future__ import annotations

import os

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from pitstop.errors import InvalidRequest
from pitstop.pool import Wish
from pitstop.server.body import parse, read_body
from pitstop.server.errors import Refused
from pitstop.server.schema.admin import UpgradeRequest
from pitstop.server.service import service_of


async def begin(http: HTTPRequest) -> Response:
    """Begin an upgrade: 202, and GET tells how it goes. 409 while another one is under way."""
    service = service_of(http)
    service.ready_pool()
    body = await read_body(http, service.config.max_body)
    wish = await service.think(_wish, body)
    if service.upgrades.under_way:
        raise Refused(409, "an upgrade is under way; wait until it has ended, or DELETE it", "upgrade_under_way")
    return JSONResponse(service.upgrades.begin(wish).report(), 202)


async def show(http: HTTPRequest) -> Response:
    """How the latest upgrade goes or went: its state, why, what was measured, and the seconds of each phase."""
    upgrades = service_of(http).upgrades
    latest = upgrades.latest if upgrades is not None else None
    return JSONResponse(latest.report() if latest is not None else {"state": "none"})


async def cancel(http: HTTPRequest) -> Response:
    """Cancel the upgrade: everything stays as it was. 409 when none is under way, or the new worker serves already."""
    upgrades = service_of(http).upgrades
    if upgrades is None or not upgrades.under_way:
        raise Refused(409, "no upgrade is under way", "no_upgrade")
    if upgrades.latest.switched:
        raise Refused(409, "the new worker serves already; begin an upgrade back instead", "upgrade_switched")
    await upgrades.latest.stop()
    return JSONResponse(upgrades.latest.report())


def _wish(body: bytes) -> Wish:
    """Raises InvalidRequest."""
    wish = parse(body, UpgradeRequest).wish()
    if wish.python is not None and not (os.path.isfile(wish.python) and os.access(wish.python, os.X_OK)):
        raise InvalidRequest(f"python: {wish.python!r} is no program on the server's machine", "python")
    return wish
