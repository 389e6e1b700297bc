"""The web app: routes, and their description in OpenAPI."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pitstop import __version__
from pitstop.errors import PitstopError
from pitstop.server import chat, completions, drain, embeddings, health, lora, messages, models, responses, tokens, upgrade
from pitstop.server.errors import Refused, answer_error
from pitstop.server.gate import Gate, authorize, authorize_admin, take_slot
from pitstop.server.schema import ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from pitstop.server.schema import answers as shapes
from pitstop.server.schema.admin import LoraRequest, ScoreRequest, UpgradeRequest
from pitstop.server.schema.messages import CountRequest, MessagesRequest
from pitstop.server.schema.responses import ResponsesRequest
from pitstop.server.score import ScoreAnswer, Scoring
from pitstop.server.service import Service
from pitstop.server.streaming import CLIENT_GONE

_STREAMED = (ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest)
_BODIES = (
    *_STREAMED,
    EmbeddingRequest,
    CountRequest,
    TokenizeRequest,
    DetokenizeRequest,
    shapes.ErrorAnswer,
    shapes.AnthropicErrorAnswer,
)
_ADMIN_BODIES = (ScoreRequest, UpgradeRequest, LoraRequest)
_REFS = "#/components/schemas/{model}"

_ANTHROPIC = (MessagesRequest, CountRequest)


def _error(whose: str, answer: type[BaseModel]) -> dict[str, Any]:
    schema = {"$ref": _REFS.format(model=answer.__name__)}
    return {"description": f"{whose} error object.", "content": {"application/json": {"schema": schema}}}


_EVENT = {
    "type": "object",
    "description": "A server-sent event: data is a chunk or an event as the API defines it, an error object, or [DONE].",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}


def create_app(service: Service) -> FastAPI:
    """The app around `service`. It answers /livez at once, and the rest of it when the service has been opened."""
    app = FastAPI(title="Pitstop", version=__version__, summary="OpenAI-compatible serving of one language model.", redirect_slashes=False)
    app.state.service = service
    app.add_middleware(Gate, service=service)
    for kind in (PitstopError, Refused, HTTPException):
        app.add_exception_handler(kind, answer_error)
    app.add_exception_handler(ClientDisconnect, _nobody_waits)
    bearer = HTTPBearer(auto_error=False, description="One of the server's API keys.")
    guard = [Depends(bearer), Depends(authorize)] if service.config.api_keys else []
    keyed: dict[str, Any] = {"dependencies": guard}
    post: dict[str, Any] = {"dependencies": [*guard, Depends(take_slot)] if guard else [], "methods": ["POST"]}
    get = {"methods": ["GET"]}

    def route(path: str, endpoint, answer: type[BaseModel] | None, errors: str, body: type[BaseModel] | None = None, **options) -> None:
        error = _error("Anthropic's", shapes.AnthropicErrorAnswer) if body in _ANTHROPIC else _error("OpenAI's", shapes.ErrorAnswer)
        responses: dict[int | str, dict] = {int(code): error for code in errors.split()}
        if body in _STREAMED:
            responses[200] = {"content": {"text/event-stream": {"schema": _EVENT}}}
        extra = _body(body) if body is not None else None
        app.add_api_route(path, endpoint, response_model=answer, responses=responses, openapi_extra=extra, **options)

    generation_errors = "400 401 404 408 413 415 429 500 503 504"
    route("/v1/chat/completions", chat.create_chat_completion, shapes.ChatAnswer, generation_errors, ChatRequest, **post)
    route("/v1/completions", completions.create_completion, shapes.CompletionAnswer, generation_errors, CompletionRequest, **post)
    route("/v1/embeddings", embeddings.create_embedding, shapes.EmbeddingAnswer, generation_errors, EmbeddingRequest, **post)
    route("/v1/responses", responses.create_response, shapes.ResponsesAnswer, generation_errors, ResponsesRequest, **post)
    route("/v1/messages", messages.create_message, shapes.MessageAnswer, generation_errors, MessagesRequest, **post)
    token_errors = "400 401 404 408 413 415 429 500 503"
    route("/v1/messages/count_tokens", messages.count_tokens, shapes.CountAnswer, token_errors, CountRequest, **post)
    route("/tokenize", tokens.tokenize, shapes.TokenizeAnswer, token_errors, TokenizeRequest, **post)
    route("/detokenize", tokens.detokenize, shapes.DetokenizeAnswer, token_errors, DetokenizeRequest, **post)
    route("/v1/models", models.list_models, shapes.ModelList, "401", **keyed, **get)
    route("/v1/models/{id:path}", models.get_model, shapes.Model, "401 404", **keyed, **get)
    route("/livez", health.livez, shapes.Status, "", **get)
    for path, probe, shape in (
        ("/startupz", health.startupz, shapes.Status),
        ("/readyz", health.readyz, shapes.Status),
        ("/healthz", health.healthz, shapes.Health),
    ):
        app.add_api_route(path, probe, response_model=shape, responses={503: {"model": shape}})
    app.add_api_route("/metrics", health.metrics, response_class=_PrometheusText)
    if service.config.admin:
        guarded = {"dependencies": [Depends(bearer), Depends(authorize_admin)]} if service.config.admin_key else keyed
        errors = "400 401 404 408 413 415 429 500 503 504"
        route("/admin/score", Scoring().score, None, errors, ScoreRequest, response_class=ScoreAnswer, **guarded, methods=["POST"])
        route("/admin/drain", drain.drain, shapes.Status, "401", status_code=202, **guarded, methods=["POST"])
        errors = "400 401 408 409 413 415 503"
        route("/admin/upgrade", upgrade.begin, shapes.Upgrade, errors, UpgradeRequest, status_code=202, **guarded, methods=["POST"])
        route("/admin/upgrade", upgrade.show, shapes.Upgrade, "401", **guarded, **get)
        route("/admin/upgrade", upgrade.cancel, shapes.Upgrade, "401 409", **guarded, methods=["DELETE"])
        route("/admin/lora", lora.load, shapes.Lora, errors + " 500 504", LoraRequest, status_code=201, **guarded, methods=["POST"])
        route("/admin/lora", lora.show, shapes.LoraList, "401 503", **guarded, **get)
        route("/admin/lora/{name:path}", lora.unload, shapes.Lora, "401 404 503", **guarded, methods=["DELETE"])
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


class _PrometheusText(Response):
    media_type = "text/plain"


async def _nobody_waits(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


def _body(kind: type[BaseModel]) -> dict[str, Any]:
    """Routes read their bodies themselves (off the event loop), so OpenAPI must be told of them."""
    schema = {"$ref": _REFS.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        bodies = (*_BODIES, *_ADMIN_BODIES) if app.state.service.config.admin else _BODIES
        _, definitions = models_json_schema([(kind, "validation") for kind in bodies], ref_template=_REFS)
        document["components"]["schemas"] |= definitions["$defs"]
        app.openapi_schema = document
    return app.openapi_schema
