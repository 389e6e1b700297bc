"""Faults that show only after a while: `fake_server.py --lasting NAME=N`, more than one if need be.

handles=N   every Nth request leaves a file open
threads=N   every Nth request leaves a thread
blind=N     after N requests /metrics answers 500
drift=N     after N requests answers change
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Lasting:
    """ASGI middleware: counts generating requests, and spoils things by that count."""

    def __init__(self, app: ASGIApp, faults: Iterable[str]) -> None:
        self._app = app
        self._faults = {name: int(value) for name, _, value in (fault.partition("=") for fault in faults)}
        self._requests = 0
        self._kept: list[object] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("completions"):
            self._requests += 1
            self._keep()
            if self._past("drift"):
                send = _altered(send)
        if scope["type"] == "http" and scope["path"] == "/metrics" and self._past("blind"):
            await Response("no", 500)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _past(self, fault: str) -> bool:
        return fault in self._faults and self._requests > self._faults[fault]

    def _keep(self) -> None:
        if "handles" in self._faults and self._requests % self._faults["handles"] == 0:
            self._kept.append(open("/dev/null"))  # noqa: SIM115
        if "threads" in self._faults and self._requests % self._faults["threads"] == 0:
            threading.Thread(target=threading.Event().wait, daemon=True).start()


def _altered(send: Send) -> Send:
    async def altered(message: Message) -> None:
        if message.get("body"):
            message = message | {"body": re.sub(rb'("(?:text|content)":\s*")[^"\\]', rb"\1~", message["body"])}
        await send(message)

    return altered
