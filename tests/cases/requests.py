"""Cases 18, 19 and 25: requests as such."""

from __future__ import annotations

import pytest
from servers import Server, refused, until

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b'"x"',
        b"true",
        b"{}",
        b'{"model": }',
        b'{"model": "\xff"}',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        '{"model": "x"}'.encode("utf-16"),
        b"\x00",
        b"[" * 100_000,
        b'{"model":' * 5000,
        b'{"seed":' + b"9" * 5000 + b"}",
        b'{"model": "x", "model": "y"} trailing',
        b"NaN",
    ],
)
def test_case_18_bodies_that_are_no_request(server: Server, path: str, body: bytes):
    refused(server.post(path, body), 400)


@pytest.mark.parametrize("path", ROUTES)
def test_case_18_content_types(server: Server, path: str):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx", ""):
        assert "application/json" in refused(server.http.post(path, content=b"{}", headers={"Content-Type": kind}), 415)
    refused(server.http.post(path, content=b"{}"), 415)
    refused(server.http.post(path, content=b"{}", headers={"Content-Type": "Application/JSON; charset=utf-8"}), 400)


@pytest.mark.parametrize("path", ROUTES)
def test_case_18_wrong_methods_and_routes(server: Server, path: str):
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        response = server.http.request(method, path)
        refused(response, 405, code="method_not_allowed")
        assert response.headers["allow"] == "POST"
    refused(server.http.get("/v1/nothing"), 404, code="not_found")
    refused(server.http.post("/v1/chat/completions/"), 404, code="not_found")


@pytest.mark.parametrize("stream", [False, True])
def test_case_19_a_prompt_three_times_the_context(server: Server, stream: bool):
    prompt = "one two three four five six seven eight nine ten " * (server.context * 3 // 10)
    tokens = server.post("/tokenize", {"prompt": prompt}).json()["count"]
    assert tokens > 2.5 * server.context
    response = server.complete(prompt, stream=stream)
    message = refused(response, 400, "prompt", "context_length_exceeded")
    assert response.headers["content-type"] == "application/json"
    assert str(tokens) in message
    assert str(server.context) in message
    refused(server.chat(prompt, stream=stream, max_tokens=None), 400, "messages", "context_length_exceeded")


def test_case_19_a_body_of_20_megabytes(server: Server):
    body = b'{"model": "' + b"x" * (20 << 20) + b'"}'
    refused(server.post("/v1/completions", body), 413, code="body_too_large")

    def parts():
        for start in range(0, len(body), 1 << 16):
            yield body[start : start + (1 << 16)]

    chunked = server.http.post("/v1/completions", content=parts(), headers={"Content-Type": "application/json"})
    refused(chunked, 413, code="body_too_large")
    assert server.alive()


def idle(server: Server) -> bool:
    names = ['pitstop_requests{stage="encoding"}', 'pitstop_requests{stage="queued"}', 'pitstop_requests{stage="running"}']
    return not any(map(server.metric, [*names, 'pitstop_kv_pages{use="in_use"}', 'pitstop_kv_tails{use="in_use"}']))


def test_case_25_closed_streams_free_everything(server: Server):
    until(lambda: idle(server), 30)  # of what tests before have left
    cancelled = server.metric('pitstop_requests_finished_total{reason="cancelled"}')
    body = {"model": server.model, "prompt": server.endless, "max_tokens": server.context // 2, "stream": True, "ignore_eos": True}
    opened = []
    for _ in range(8):
        stream = server.http.stream("POST", "/v1/completions", json=body)
        chunks = stream.__enter__().iter_bytes()
        assert next(chunks).startswith(b"data: ")
        opened.append((stream, chunks))  # an iterator that is dropped closes its stream
    assert server.metric('pitstop_requests{stage="running"}') == 8
    for stream, _ in opened:
        stream.__exit__(None, None, None)
    until(lambda: idle(server), 10)  # a second at most on an idle machine (bench/chaos.py)
    assert server.metric('pitstop_requests_finished_total{reason="cancelled"}') == cancelled + 8
    assert server.alive()
