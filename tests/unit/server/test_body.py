"""Reading and checking bodies, without a server."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request

from pitstop.errors import InvalidRequest
from pitstop.server import body
from pitstop.server.body import field_path, parse, read_body
from pitstop.server.errors import Refused, describe
from pitstop.server.schema import ChatRequest


def request_of(*messages: dict, headers: dict[str, str] | None = None) -> Request:
    """A request whose messages come one after the other; after the last, nothing comes."""
    waiting = list(messages)

    async def receive() -> dict:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    raw = [(name.lower().encode(), value.encode()) for name, value in ({"Content-Type": "application/json"} | (headers or {})).items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw}, receive)


def part(data: bytes, more: bool = True) -> dict:
    return {"type": "http.request", "body": data, "more_body": more}


def test_parts_are_joined():
    assert asyncio.run(read_body(request_of(part(b"ab"), part(b"c", more=False)), 3)) == b"abc"


def test_the_limit_holds_whatever_content_length_claims(monkeypatch):
    monkeypatch.setattr(body, "_LINGER_SECONDS", 0.01)
    for messages, headers in (
        ([part(b"abcd", more=False)], {}),
        ([part(b"ab"), part(b"cd")], {"Content-Length": "2"}),
        ([], {"Content-Length": "4"}),
    ):
        with pytest.raises(Refused) as caught:
            asyncio.run(read_body(request_of(*messages, headers=headers), 3))
        assert caught.value.status == 413


def test_a_body_that_stalls_times_out(monkeypatch):
    monkeypatch.setattr(body, "BODY_TIMEOUT", 0.01)
    with pytest.raises(Refused) as caught:
        asyncio.run(read_body(request_of(part(b"a")), 3))
    assert (caught.value.status, caught.value.headers) == (408, {"Connection": "close"})


def test_field_paths():
    assert field_path(("messages", 0, "content", "~list", 1, "text")) == "messages[0].content[1].text"
    assert field_path(()) == ""
    assert len(field_path(("x" * 10_000,))) == 80


def test_the_first_error_that_is_no_unknown_field_is_reported():
    with pytest.raises(InvalidRequest) as caught:
        parse(b'{"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}', ChatRequest)
    assert caught.value.field == "messages[0].content[0].type"


def test_error_bodies_serialise_and_stay_small():
    _, error, _ = describe(InvalidRequest("x" * 5000 + "\ud800", "\udfff" * 5000))
    assert len(error["error"]["message"].encode()) <= 1000
    assert len(error["error"]["param"].encode()) <= 1000
    _, error, _ = describe(ZeroDivisionError("a secret"))
    assert "secret" not in str(error)


def test_an_unforeseen_failure_is_a_500_that_tells_nothing_and_has_an_id(monkeypatch):
    from starlette.testclient import TestClient

    from pitstop.config import ServerConfig
    from pitstop.server import Service, create_app, models

    monkeypatch.setattr(models, "_model", lambda service: 1 / 0)
    answer = TestClient(create_app(Service(ServerConfig("toy")))).get("/v1/models", headers={"X-Request-Id": "abc"})
    assert (answer.status_code, answer.json()["error"]["code"], answer.headers["x-request-id"]) == (500, "internal_error", "abc")
    assert "division" not in answer.text
