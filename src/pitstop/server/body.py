"""From bytes to a checked request body: bounded reading, strict JSON, errors that name the field."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from pitstop.errors import InvalidRequest
from pitstop.server.errors import Refused
from pitstop.server.schema import Body

BODY_TIMEOUT = 30.0
"""Seconds in which a body must have come."""

_LINGER_BYTES = 64 << 20
_LINGER_SECONDS = 5.0
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")

B = TypeVar("B", bound=Body)


async def read_body(request: Request, limit: int) -> bytes:
    """The body, at most `limit` bytes, whatever its Content-Length claims. Raises Refused 415, 413 or 408."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        given = f"not {kind!r}" if kind else "which is missing"
        raise Refused(415, f"send the body with the header Content-Type: application/json, {given}", "unsupported_media_type")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        await _linger(request)
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                if len(body) > limit:
                    break
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {BODY_TIMEOUT:g} s", "body_timeout", {"Connection": "close"}) from None
    await _linger(request)
    raise _too_large(limit)


def _too_large(limit: int) -> Refused:
    return Refused(413, f"the body exceeds {limit} bytes; send a shorter one", "body_too_large", {"Connection": "close"})


async def _linger(request: Request) -> None:
    """Throw away what the client still sends, within bounds: most read the answer only after they have sent everything."""
    if request.headers.get("expect", "").lower() == "100-continue":
        return  # it waits for our word before it sends
    left = _LINGER_BYTES
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            while left > 0:
                message = await request.receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def parse(body: bytes, kind: type[B]) -> B:
    """Raises InvalidRequest, whose `field` is the path of the first offending value."""
    value = _json(body)
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {_json_type(value)}")
    if _SURROGATE_ESCAPE.search(body):
        _refuse_lone_surrogates(value)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise invalid(error) from None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: byte {error.start} is wrong", None, "invalid_json") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not JSON: {error.msg}, at line {error.lineno} column {error.colno}", None, "invalid_json"
        ) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", None, "invalid_json") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise InvalidRequest("the body holds a number with too many digits", None, "invalid_json") from None


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _refuse_lone_surrogates(value: Any) -> None:
    stack: list[tuple[tuple, Any]] = [((), value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, str):
            if _SURROGATE.search(item):
                name = field_path(path)
                raise InvalidRequest(f"{name}: holds a lone surrogate, which is no character; send the pair or leave it out", name)
        elif isinstance(item, list):
            stack += [((*path, i), child) for i, child in enumerate(item)]
        elif isinstance(item, dict):
            for key, child in item.items():
                stack += [((*path, key), key), ((*path, key), child)]


def field_path(location: tuple[str | int, ...]) -> str:
    """("messages", 0, "content", "~list", 1) → "messages[0].content[1]"."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("~"):
            path += f".{step[:80]}" if path else step[:80]
    return path


def invalid(error: ValidationError) -> InvalidRequest:
    """The first offending value, as an error that names it."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = next((item for item in found if item["type"] != "extra_forbidden"), found[0])
    path = field_path(first["loc"])
    match first["type"]:
        case "missing":
            message = f"{path} is required"
        case "extra_forbidden":
            message = f"{path}: unknown field; leave it out"
        case "unsupported" | "range":
            message = f"{path} {first['msg']}"
        case _:
            message = f"{path}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return InvalidRequest(message, path)
