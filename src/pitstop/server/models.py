"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from pitstop.server.service import Service, service_of


async def list_models(http: HTTPRequest) -> Response:
    """The model that is served, and its LoRA adapters."""
    service = service_of(http)
    names = [service.config.model_name, *service.adapters]
    return JSONResponse({"object": "list", "data": [_model(service, name) for name in names]})


async def get_model(http: HTTPRequest, id: str) -> Response:
    """One model. `max_model_len`: longest prompt + answer in tokens, null while it is loading. `parent`: the model of an adapter."""
    service = service_of(http)
    service.check_model(id)
    return JSONResponse(_model(service, id))


def _model(service: Service, name: str) -> dict:
    parent = service.config.model_name if name != service.config.model_name else None
    created = service.since(name)
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "pitstop",
        "max_model_len": service.context,
        "parent": parent,
    }
