"""POST and GET /admin/lora, DELETE /admin/lora/{name}: LoRA adapters are loaded and unloaded while requests are served."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from pitstop.config import Adapter
from pitstop.errors import InvalidRequest
from pitstop.pool import Pool
from pitstop.server.body import parse, read_body
from pitstop.server.errors import Refused
from pitstop.server.schema.admin import LoraRequest
from pitstop.server.service import service_of


async def load(http: HTTPRequest) -> Response:
    """Serve an adapter, once every worker has it: 201. Whatever is wrong with it, nothing changes."""
    service = service_of(http)
    pool = service.ready_pool()
    wish = parse(await read_body(http, service.config.max_body), LoraRequest)
    if wish.name == service.config.model_name:
        raise InvalidRequest(f"name: {wish.name!r} is the model's own", "name")
    adapter = await service.think(service.read_adapter, wish.name, wish.path, pool.model)
    if service.upgrades is not None and service.upgrades.under_way:
        raise Refused(409, "an upgrade is under way; load the adapter when it has ended", "upgrade_under_way")
    await pool.adapters.load(adapter)
    return JSONResponse(_described(pool, adapter), 201)


async def unload(http: HTTPRequest, name: str) -> Response:
    """Take no new requests for it; those in flight finish. 404 when there is none."""
    pool = service_of(http).ready_pool()
    return JSONResponse(_described(pool, pool.adapters.unload(name)))


async def show(http: HTTPRequest) -> Response:
    """The adapters that requests may name as their model."""
    pool = service_of(http).ready_pool()
    return JSONResponse({"object": "list", "data": [_described(pool, adapter) for adapter in pool.adapters.served.values()]})


def _described(pool: Pool, adapter: Adapter) -> dict[str, Any]:
    return {
        "name": adapter.name,
        "path": adapter.path,
        "digest": adapter.digest,
        "rank": adapter.rank,
        "bytes": adapter.size,
        "made_for": adapter.base or None,
        "loaded": pool.adapters.since[adapter.name],
    }
