"""What the server logs of a request, and what it does not."""

from __future__ import annotations

import json
import re
from pathlib import Path

from servers import fake_server, open_stream, refused, until

SECRET = "a-very-secret-word"


def lines(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]  # the worker writes there, too


def access(log: Path) -> list[dict]:
    return [line for line in lines(log) if line["logger"] == "pitstop.access"]


def test_one_json_line_a_request_with_what_matters_and_no_prompt(tmp_path: Path):
    log = tmp_path / "log"
    with fake_server("--log-format", "json", "--key", "k0", "--key", "k1", log=log, key="k1") as server:
        prompt = f"{SECRET} #say four#"
        answer = server.http.post("/v1/completions", json={"model": "toy", "prompt": prompt}, headers={"X-Request-Id": "mine"})
        refused(server.complete(SECRET, temperature=-1), 400)
        refused(server.complete(f"{SECRET} #fail 2#"), 500)
        refused(server.complete(SECRET, model=SECRET[:3]), 404)
        refused(server.post("/v1/completions", b'{"prompt": "' + SECRET.encode()), 400)
        refused(server.chat(f"#wedge 0# {SECRET}", timeout=0.05), 504)
        with open_stream(server, f"{SECRET} #slow 20#"):
            pass  # the client goes
        until(lambda: len(access(log)) == 7, 5)
    first, bad, failed, wrong, broken, late, left = access(log)
    assert (first["request"], first["route"], first["status"], first["model"]) == ("mine", "/v1/completions", 200, "toy")
    assert (first["prompt_tokens"], first["completion_tokens"], first["cached_tokens"], first["finish"]) == (
        answer.json()["usage"]["prompt_tokens"],
        5,
        3,
        "stop",
    )
    assert (first["answer"], first["key"], first["stream"]) == (answer.json()["id"], 1, False)
    assert 0 <= first["queued_s"] <= first["admitted_s"] <= first["first_token_s"] <= first["ended_s"] < 10
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first["time"])
    assert (bad["status"], "model" in bad) == (400, False)
    assert (failed["status"], failed["error"]) == (500, "engine_error")
    assert (wrong["error"], broken["error"], late["error"]) == ("model_not_found", "invalid_json", "deadline_exceeded")
    assert (left["finish"], left["stream"]) == ("cancelled", True)
    assert SECRET not in log.read_text()


def test_every_line_about_a_request_names_it(tmp_path: Path):
    log = tmp_path / "log"
    with fake_server("--log-format", "json", log=log) as server:
        server.http.post("/v1/completions", json={"model": "toy", "prompt": "#fail 0#"}, headers={"X-Request-Id": "the-one"})
    about = [line for line in lines(log) if "failed" in line["message"] or "completions" in line["message"]]
    assert len(about) >= 2  # the warning and the access line
    assert {line["request"] for line in about} == {"the-one"}


def test_text_lines_name_the_request_too(tmp_path: Path):
    log = tmp_path / "log"
    with fake_server(log=log) as server:
        server.http.post("/v1/completions", json={"model": "toy", "prompt": "#say hi#"}, headers={"X-Request-Id": "the-one"})
    assert re.search(r"INFO pitstop.access: POST /v1/completions 200 in \d\.\d{3} s, 8\+3 tokens, stop \[the-one\]\n", log.read_text())


def test_prompts_are_logged_when_the_operator_wants_it(tmp_path: Path):
    log = tmp_path / "log"
    with fake_server("--log-format", "json", "--log-prompts", log=log) as server:
        server.complete([f"{SECRET} #say a#", "#say b#"], n=2)
    (line,) = access(log)
    assert line["prompts"] == [f"{SECRET} #say a#", "#say b#"]
