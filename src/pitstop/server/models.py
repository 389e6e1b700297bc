"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from pitstop.server.service import Service, service_of


async def list_models(http: HTTPRequest) -> Response:
    """The one model that is served."""
    return JSONResponse({"object": "list", "data": [_model(service_of(http))]})


async def get_model(http: HTTPRequest, id: str) -> Response:
    """One model. `max_model_len`: longest prompt + answer in tokens, null while the model is loading."""
    service = service_of(http)
    service.check_model(id)
    return JSONResponse(_model(service))


def _model(service: Service) -> dict:
    name = service.config.model_name
    return {"id": name, "object": "model", "created": service.created, "owned_by": "pitstop", "max_model_len": service.context}
