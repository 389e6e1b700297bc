"""/admin/lora, and adapters as models in the API, before a fake worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import Server, fake_server, open_stream, refused, until


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server("--admin", "--lora", "first=/x/one") as server:
        yield server


def names(server: Server) -> list[str]:
    return [model["id"] for model in server.http.get("/v1/models").json()["data"]]


def test_an_adapter_is_a_model(server: Server) -> None:
    base, first = server.http.get("/v1/models").json()["data"]
    assert (base["id"], base["parent"]) == ("toy", None)
    assert first | {"created": 0} == base | {"id": "first", "parent": "toy", "created": 0}
    assert server.http.get("/v1/models/first").json() == first
    for model, name in (("first", "first"), ("toy", "base")):
        assert server.chat("#who#", model=model).json()["choices"][0]["message"]["content"] == name
        answer = server.complete("#who#", model=model).json()
        assert (answer["choices"][0]["text"], answer["model"]) == (name, model)
        assert {event["model"] for event in server.chat_stream("#who#", model=model)} == {model}
    for response in (server.chat("#who#", model="second"), server.complete("#who#", model="second"), server.http.get("/v1/models/second")):
        assert "/v1/models" in refused(response, 404, "model", "model_not_found")
    tokens = [server.post("/tokenize", {"model": model, "prompt": "hello"}).json() for model in ("first", "toy")]
    assert tokens[0] == tokens[1]
    assert server.post("/admin/score", {"model": "first", "prompt": "hello"}).status_code == 200
    refused(server.post("/admin/score", {"model": "second", "prompt": "hello"}), 404, "model")


def test_one_is_loaded_and_unloaded_while_requests_run(server: Server) -> None:
    response = server.post("/admin/lora", {"name": "org/second:v1", "path": "/x/two"})
    assert response.status_code == 201, response.text
    loaded = response.json()
    assert {key: loaded[key] for key in ("name", "path", "digest", "rank", "bytes", "made_for")} == {
        "name": "org/second:v1", "path": "/x/two", "digest": "two", "rank": 8, "bytes": 1000, "made_for": "somebody's",
    }  # fmt: skip
    assert server.http.get("/admin/lora").json()["data"][1] == loaded
    assert names(server) == ["toy", "first", "org/second:v1"]
    assert (server.metric("pitstop_lora_adapters"), server.metric("pitstop_lora_adapter_bytes")) == (2, 2000)
    refused(server.post("/admin/lora", {"name": "org/second:v1", "path": "/x/other"}), 400, "name", "adapter_exists")
    with open_stream(server, "#slow 5##say it goes on and on#", model="org/second:v1") as events:
        assert server.http.delete("/admin/lora/org/second:v1").json() == loaded
        assert names(server) == ["toy", "first"]
        refused(server.complete("#who#", model="org/second:v1"), 404, "model")
        assert list(events)[-1] == "[DONE]"
    refused(server.http.delete("/admin/lora/org/second:v1"), 404)
    assert server.post("/admin/lora", {"name": "org/second:v1", "path": "/x/other"}).json()["digest"] == "other"
    server.http.delete("/admin/lora/org/second:v1")


def test_what_is_wrong_is_refused_by_name_and_changes_nothing(server: Server) -> None:
    for body, field in (
        ({"name": "x"}, "path"),
        ({"path": "/x/y"}, "name"),
        ({"name": "toy", "path": "/x/y"}, "name"),
        ({"name": "x", "path": "/x/bad"}, "path"),
        ({"name": "x", "path": "/x/gone"}, "path"),
        ({"name": "x", "path": "/x/y", "rank": 3}, "rank"),
        ({"name": 3, "path": "/x/y"}, "name"),
    ):
        refused(server.post("/admin/lora", body), 400, field)
    assert names(server) == ["toy", "first"]


def test_not_during_an_upgrade(server: Server) -> None:
    assert server.post("/admin/upgrade", {"model": "toy --slow-start 1"}).status_code == 202
    refused(server.post("/admin/lora", {"name": "x", "path": "/x/y"}), 409, code="upgrade_under_way")
    server.http.delete("/admin/upgrade")
    until(lambda: server.http.get("/admin/upgrade").json()["state"] in ("cancelled", "rolled_back"), 20)
    assert server.complete("#who#", model="first").json()["choices"][0]["text"] == "first"


def test_the_routes_need_the_admin_key_and_admin() -> None:
    with fake_server("--admin", "--admin-key", "secret", key="secret") as server:
        assert server.post("/admin/lora", {"name": "x", "path": "/x/y"}).status_code == 201
        server.http.headers["Authorization"] = "Bearer wrong"
        for response in (
            server.post("/admin/lora", {"name": "z", "path": "/x/y"}),
            server.http.get("/admin/lora"),
            server.http.delete("/admin/lora/x"),
        ):
            refused(response, 401)
    with fake_server() as server:
        assert server.post("/admin/lora", {"name": "x", "path": "/x/y"}).status_code == 404
