"""Births, deaths and crowds: one server process each, before a worker without a model."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest
from servers import HERE, Server, assert_books_balance, children, fake_server, open_stream, refused, until


def test_case_07_a_failure_after_the_stream_began_is_an_error_event(server: Server):
    with open_stream(server, "#fail 3#") as events:
        *chunks, last = list(events)
    assert len(chunks) == 3
    assert all(json.loads(chunk)["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert json.loads(last)["error"]["message"] == "scripted failure"
    refused(server.complete("#fail 3#"), 500, code="engine_error")
    refused(server.complete("#fail 0#", stream=True), 500, code="engine_error")  # nothing was sent yet: a status can still say it


def test_a_failure_by_the_request_s_own_fault_is_no_server_error(server: Server):
    refused(server.complete("#refuse 3#"), 400)
    with open_stream(server, "#refuse 3#") as events:
        *_, last = list(events)
    assert json.loads(last)["error"]["type"] == "invalid_request_error"


def test_case_07_with_the_openai_client(server: Server):
    import openai

    with pytest.raises(openai.APIError, match="scripted failure"):
        list(server.openai.completions.create(model=server.model, prompt="#fail 3#", max_tokens=10, stream=True))


def test_case_07_a_sigkilled_worker_is_replaced_and_no_answer_shows_it():
    with fake_server() as server:
        (worker,) = children(server.process.pid)
        with open_stream(server, "count #slow 5#") as events, ThreadPoolExecutor(1) as threads:
            next(events)
            unstreamed = threads.submit(server.complete, "count #slow 5#", max_tokens=400)
            until(lambda: server.metric('pitstop_requests{stage="running"}') == 2, 5)
            os.kill(worker, signal.SIGKILL)
            until(lambda: server.http.get("/readyz").status_code == 503, 5)
            assert server.http.get("/readyz").json()["status"] == "restarting"
            assert server.http.get("/livez").status_code == 200
            response = server.complete("hello")
            refused(response, 503)
            assert response.headers["retry-after"]
            *chunks, last = list(events)
            assert last == "[DONE]"
            whole = unstreamed.result().json()["choices"][0]
            assert whole["finish_reason"] == "length"
            first_letter = whole["text"][0]
            assert first_letter + "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == whole["text"]
        assert server.http.get("/readyz").status_code == 200
        assert server.complete("#say back#").json()["choices"][0]["text"] == "back"
        assert server.metric("pitstop_worker_restarts_total") == 1
        assert server.metric("pitstop_requests_resumed_total") == server.metric("pitstop_request_pause_seconds_count") == 2
        assert server.metric('pitstop_requests_finished_total{reason="error"}') == 0
        assert_books_balance(server)


@pytest.mark.parametrize(("deed", "code"), [("die", "unavailable"), ("crash", "engine_error")])
def test_case_07_a_request_that_ends_every_worker_ends_with_an_error_event(deed: str, code: str):
    """After three attempts; after two when the workers crashed by themselves."""
    with fake_server() as server:
        with open_stream(server, f"count #{deed} 3#") as events:
            *chunks, last = list(events)
        assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == "0 1"
        error = json.loads(last)["error"]
        assert error["code"] == code
        assert "cmpl-" in error["message"]
        until(lambda: server.http.get("/readyz").status_code == 200, 10)
        assert server.metric("pitstop_worker_restarts_total") == (3 if deed == "die" else 2)
        assert server.alive()


def test_loading_is_live_but_not_ready():
    with fake_server(worker=("--slow-start", "60"), ready=False) as server:
        until(lambda: server.http.get("/livez").status_code == 200, 5)
        ready = server.http.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"status": "loading"})
        refused(server.chat(), 503, code="unavailable")
        refused(server.post("/tokenize", {"prompt": "x"}), 503)
        assert server.http.get("/v1/models").json()["data"][0]["max_model_len"] is None
        assert server.metric("pitstop_ready") == 0
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 0
        assert time.monotonic() - start < 3


def test_a_worker_that_cannot_start_ends_the_server_with_its_reason():
    command = [sys.executable, str(HERE / "fake_server.py"), "--", "--fail", "no such weights"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ConfigError: no such weights")


def test_a_port_in_use_is_a_clear_error():
    from pitstop.errors import ConfigError
    from pitstop.server.run import listen

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="choose another"):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match="choose another"):
        listen("no.such.host.invalid", 8000)


def test_an_answer_does_not_wait_for_an_acknowledgement():
    """Under either event loop: this one is asyncio's, which forgets TCP_NODELAY for sockets that it did not make."""
    from pitstop.server.run import listen

    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
def test_a_lost_connection_is_not_kept_until_its_keep_alive_is_over(error: Exception | None):
    from uvicorn.server import ServerState

    from pitstop.config import ServerConfig
    from pitstop.server import run

    async def connect_and_lose() -> tuple[weakref.ref, asyncio.TimerHandle]:
        config = importlib.import_module(run.__module__)._uvicorn_config(None, ServerConfig("toy", keep_alive=75), {})
        config.load()
        protocol = config.http_protocol_class(config, ServerState(), {})
        protocol.transport = SimpleNamespace(close=lambda: None)
        timer = protocol.timeout_keep_alive_task = asyncio.get_running_loop().call_later(75, protocol.timeout_keep_alive_handler)
        protocol.connection_lost(error)
        return weakref.ref(protocol), timer

    lost, timer = asyncio.run(connect_and_lose())
    assert timer.cancelled()
    gc.collect()
    assert lost() is None


def slow(server: Server, prompt: str) -> dict:
    return {"model": server.model, "prompt": prompt, "max_tokens": 100}


def test_case_25_clients_that_go_away_while_queued_or_waiting_for_the_whole(server: Server):
    before = server.metric('pitstop_requests_finished_total{reason="cancelled"}')
    connections = []
    for prompt, stream in (("#hold#", True), ("#hold#", False), ("count #slow 10#", False)):
        body = json.dumps(slow(server, prompt) | {"stream": stream}).encode()
        raw = socket.create_connection(httpx.URL(server.url).netloc.decode().split(":"))
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
        raw.sendall(body)
        connections.append(raw)
    until(lambda: (server.metric('pitstop_requests{stage="queued"}'), server.metric('pitstop_requests{stage="running"}')) == (2, 1), 5)
    for raw in connections:
        raw.close()
    until(lambda: server.metric('pitstop_requests_finished_total{reason="cancelled"}') == before + 3, 2)
    until(lambda: server.metric('pitstop_kv_pages{use="in_use"}') == 0, 2)


def test_time_outs(server: Server):
    refused(server.complete("count #slow 20#", max_tokens=400, timeout=0.2), 504, code="deadline_exceeded")
    refused(server.complete("#hold#", timeout=0.1, stream=True), 504, code="deadline_exceeded")
    with open_stream(server, "count #slow 20#", timeout=0.3) as events:
        *_, last = list(events)
    assert json.loads(last)["error"]["code"] == "deadline_exceeded"
    refused(server.complete(timeout=61), 400, "timeout")


def test_case_20_a_template_that_refuses():
    with fake_server("--strict-template") as server:
        system = [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]
        assert "No system turns, please." in refused(server.chat(messages=system), 400, "messages")
        developer = [{"role": "developer", "content": "x"}, {"role": "user", "content": "x"}]
        assert "No system turns, please." in refused(server.chat(messages=developer), 400, "messages")
        twice = [{"role": "user", "content": "x"}] * 2
        assert "Turns must alternate." in refused(server.chat(messages=twice, stream=True), 400, "messages")
        assert server.alive()


def test_api_keys():
    with fake_server("--key", "first-key", "--key", "schlüssel", key="first-key") as server:
        assert server.alive()
        assert server.http.get("/v1/models").status_code == 200
        for header in ("", "Bearer", "Bearer wrong", "Basic first-key", "first-key", "Bearer first-key2", b"Bearer \xff\xfe"):
            headers = {"Authorization": header} if header else {}
            for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("POST", "/tokenize")):
                response = httpx.request(method, server.url + path, headers=headers)
                refused(response, 401, code="invalid_api_key")
                assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/livez", "/readyz", "/metrics"):
            assert httpx.get(server.url + path).status_code == 200
        second = {"Authorization": "bearer schlüssel".encode()}
        assert httpx.get(server.url + "/v1/models", headers=second).status_code == 200


def test_a_body_that_does_not_come_holds_nobody_up(server: Server):
    raw = socket.create_connection(httpx.URL(server.url).netloc.decode().split(":"))
    raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
    assert server.alive()
    assert server.metric('pitstop_requests{stage="encoding"}') == 0
    raw.close()
    assert server.alive()


def test_expect_100_continue_is_answered_before_the_body(server: Server):
    raw = socket.create_connection(httpx.URL(server.url).netloc.decode().split(":"))
    raw.settimeout(5)
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    )
    raw.sendall(head % (50 << 20))
    assert raw.recv(100).startswith(b"HTTP/1.1 413")
    raw.close()


def test_request_ids(server: Server):
    assert server.http.get("/livez", headers={"X-Request-Id": "my-id.42"}).headers["x-request-id"] == "my-id.42"
    made = [server.http.get("/v1/nothing").headers["x-request-id"] for _ in range(2)]
    assert all(name.startswith("req_") for name in made)
    assert made[0] != made[1]
    for bad in ("x" * 129, "a b", ""):
        assert server.http.get("/livez", headers={"X-Request-Id": bad}).headers["x-request-id"].startswith("req_")
    assert server.chat(temperature=-1).headers["x-request-id"].startswith("req_")


def test_case_31_latency_buckets_hold_every_limit_people_set(server: Server):
    server.complete("#say hi#")
    text = server.http.get("/metrics").text
    for name in ("time_to_first_token", "request_duration"):
        for limit in ("0.3", "0.5", "0.7", "1.0", "2.0"):
            assert f'pitstop_{name}_seconds_bucket{{le="{limit}"}}' in text
    assert server.metric("pitstop_time_to_first_token_seconds_count") > 0
    assert server.metric("pitstop_inter_token_latency_seconds_count") > 0
    assert server.metric('pitstop_http_responses_total{route="/v1/completions",status="200"}') > 0


def test_capacity_is_stated_with_its_sequence_length(server: Server):
    assert server.metric('pitstop_kv_capacity_tokens{sequence_length="512"}') == 12800
    assert server.metric('pitstop_kv_capacity_ratio{sequence_length="512"}') == 1


def test_usage_counts_a_prompt_once_and_every_answer(server: Server):
    answer = server.complete(["#say a#", "#say b#"], n=2).json()
    assert [choice["text"] for choice in answer["choices"]] == ["a", "a", "b", "b"]
    assert answer["usage"]["completion_tokens"] == 8  # a letter and an end token each
    assert answer["usage"]["prompt_tokens"] == 2 * len("#say a#")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2 * 3


def test_the_front_imports_no_torch():
    program = """
import sys
import pitstop.server
from pitstop.config import ServerConfig
pitstop.server.create_app(pitstop.server.Service(ServerConfig("toy"))).openapi()
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
