"""Going down: what was accepted finishes, nothing new is taken, and it takes no longer than it may."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
from servers import children, fake_server, gone, open_stream, refused, until


def test_case_27_sigterm_drains():
    with fake_server() as server:
        (worker,) = children(server.process.pid)
        with ThreadPoolExecutor(10) as threads:
            streams = [
                threads.submit(
                    server.stream, "/v1/completions", {"model": server.model, "prompt": "#slow 30##say one two three#", "max_tokens": 100}
                )
                for _ in range(8)
            ]
            until(lambda: server.metric('pitstop_requests{stage="running"}') == 8, 5)
            kept = httpx.Client(base_url=server.url)
            kept.get("/livez")  # an idle connection must not hold the stop up
            server.process.send_signal(signal.SIGTERM)
            until(lambda: server.http.get("/readyz").status_code == 503, 1)
            assert server.http.get("/readyz").json() == {"status": "draining"}
            refused(server.complete("hello"), 503, code="unavailable")
            assert server.metric('pitstop_requests{stage="running"}') == 8
            for stream in streams:
                events = stream.result()
                assert "".join(event["choices"][0]["text"] for event in events) == "one two three"
                assert events[-1]["choices"][0]["finish_reason"] == "stop"
        assert server.process.wait(5) == 0
        kept.close()
        assert gone(worker)


def test_case_27_a_drain_is_bounded_and_says_so_to_the_streams():
    with fake_server("--stop-timeout", "0.3") as server, open_stream(server, "count #slow 10#") as events:
        server.process.send_signal(signal.SIGTERM)
        *_, last = list(events)
        assert json.loads(last)["error"]["code"] == "unavailable"
        assert server.process.wait(5) == 0


def test_case_27_a_second_signal_is_quick():
    with fake_server("--stop-timeout", "60") as server:
        (worker,) = children(server.process.pid)
        with open_stream(server, "count #slow 100#") as events:
            server.process.send_signal(signal.SIGINT)
            until(lambda: server.http.get("/readyz").status_code == 503, 2)
            start = time.monotonic()
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(5) == 0
            assert time.monotonic() - start < 3
            try:
                rest = list(events)
            except httpx.RemoteProtocolError:
                rest = []
            assert "[DONE]" not in rest  # an error event or a cut, and never an end that looks like one
        assert gone(worker)


def test_ctrl_c_in_the_terminal_reaches_the_front_only():
    with fake_server(group=True) as server, open_stream(server, "#slow 20##say one two three#") as events:
        os.killpg(server.process.pid, signal.SIGINT)
        *chunks, last = list(events)
        assert last == "[DONE]"
        assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == "one two three"
        assert server.process.wait(5) == 0


def test_an_idle_connection_gets_a_last_answer_and_is_told_to_go():
    with fake_server() as server, open_stream(server, "count #slow 20#", max_tokens=60) as events:
        idle = httpx.Client(base_url=server.url)
        assert "connection" not in idle.get("/livez").headers
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.http.get("/readyz").status_code == 503, 2)
        last = idle.post("/v1/completions", json={"prompt": "x", "model": "toy"})  # on the same connection: none is cut before it is told
        assert (last.status_code, last.headers["connection"]) == (503, "close")
        assert httpx.get(server.url + "/livez").headers["connection"] == "close"
        assert list(events)[-1] == "[DONE]"
        assert server.process.wait(5) == 0


def test_post_admin_drain_is_the_same_as_sigterm():
    with fake_server("--admin", "--admin-key", "boss", "--key", "user", key="user") as server:
        with open_stream(server, "#slow 60##say one two three#") as events:
            for key in ("user", "wrong"):
                refused(server.http.post("/admin/drain", headers={"Authorization": f"Bearer {key}"}), 401)
            assert server.http.get("/readyz").status_code == 200
            for _ in range(2):
                answer = server.http.post("/admin/drain", headers={"Authorization": "Bearer boss"})
                assert (answer.status_code, answer.json()) == (202, {"status": "draining"})
                assert server.http.get("/readyz").json() == {"status": "draining"}
            refused(server.complete("x"), 503, code="unavailable")
            server.process.send_signal(signal.SIGTERM)  # a supervisor's, after its preStop hook: not a second signal
            *chunks, last = list(events)
            assert last == "[DONE]"
            assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == "one two three"
        assert server.process.wait(5) == 0


def test_there_are_no_admin_routes_unless_they_are_wanted():
    with fake_server() as server:
        assert server.http.post("/admin/drain").status_code == 404
        assert server.alive()
