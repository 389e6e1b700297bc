"""Every error that leaves the server, as OpenAI's error object, or Anthropic's on the routes that are theirs."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from pitstop.errors import DeadlineExceeded, InvalidRequest, ModelNotFound, Overloaded, PitstopError, Unavailable
from pitstop.server.record import record

log = logging.getLogger(__name__)

MAX_MESSAGE = 1000
"""Characters of an error message or a field's path that are sent."""


class Refused(Exception):
    """A request that was refused before its body was understood."""

    def __init__(self, status: int, message: str, code: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


def describe(error: Exception) -> tuple[int, dict, dict[str, str]]:
    """HTTP status, error object and headers for any exception."""
    message, headers, param = str(error), {}, None
    match error:
        case InvalidRequest():
            status, kind, code, param = 400, "invalid_request_error", error.code, error.field
        case ModelNotFound():
            status, kind, code, param = 404, "invalid_request_error", "model_not_found", "model"
        case Overloaded():
            status, kind, code, headers = 429, "rate_limit_error", "overloaded", {"Retry-After": str(error.retry_after)}
        case Unavailable():
            status, kind, code, headers = 503, "service_unavailable", "unavailable", {"Retry-After": "1"}
        case DeadlineExceeded():
            status, kind, code = 504, "timeout_error", "deadline_exceeded"
        case Refused():
            status, kind, code, headers = error.status, "invalid_request_error", error.code, error.headers
        case HTTPException():
            status, kind, code, headers = (
                error.status_code,
                "invalid_request_error",
                _HTTP_CODES.get(error.status_code),
                error.headers or {},
            )
            message = f"{error.detail}. The routes are listed at /docs."
        case PitstopError():
            status, kind, code = 500, "server_error", "engine_error"
        case _:
            status, kind, code = 500, "server_error", "internal_error"
            message = "The server failed on this request; its log has the details."
    return status, {"error": {"message": _clean(message), "type": kind, "param": param and _clean(param), "code": code}}, dict(headers)


_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """The exception handler of the app."""
    status, body, headers = describe(error)
    record().error = body["error"]["code"]
    if status >= 500:
        log.warning("%s %s: %s", request.method, request.url.path, error)
    return JSONResponse(worded(request.url.path, status, body), status, headers)


def worded(path: str, status: int, body: dict) -> dict:
    """OpenAI's error object, or what it is to clients of a route."""
    return anthropic(status, body) if path == "/v1/messages" or path.startswith("/v1/messages/") else body


def anthropic(status: int, body: dict) -> dict:
    """Anthropic's error object: without a field of its own for the field, which the message names."""
    kind = _ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": body["error"]["message"]}, "request_id": record().id}


_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _clean(text: str) -> str:
    """Short, and fit for UTF-8 whatever the request held."""
    return text[:MAX_MESSAGE].encode("utf-8", "replace").decode()
