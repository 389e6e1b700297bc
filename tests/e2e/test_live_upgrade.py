"""Upgrades of the default model under a constant load of streams: nothing fails, nothing is cut, equal arithmetic gives equal answers."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import toy_gguf
from servers import Server, assert_books_balance, model_server, until

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

ENDS = ("done", "rolled_back", "cancelled")
STORY = "Once upon a time there was a little engine that could, and it went up the hill. "
BODIES = [
    {"prompt": STORY, "max_tokens": 90, "temperature": 0.9, "seed": 7, "ignore_eos": True},
    {"prompt": STORY * 12, "max_tokens": 40, "temperature": 0, "ignore_eos": True},  # two sealed segments
    {"prompt": "1 2 3 4 5 6", "max_tokens": 100, "temperature": 0, "ignore_eos": True},
    {"prompt": STORY * 8, "max_tokens": 1, "temperature": 0, "ignore_eos": True},
]


def ask(server: Server, body: dict) -> str:
    """A stream's text; AssertionError unless it is complete."""
    events = server.stream("/v1/completions", body | {"model": server.model, "stream_options": {"include_usage": True}})
    assert events[-1]["usage"]["completion_tokens"] == body["max_tokens"]
    assert [event["choices"][0]["finish_reason"] for event in events if event["choices"]][-1] == "length"
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


@contextmanager
def load(server: Server, expected: list[str] | None):
    """One client for each body, without a pause; equal answers where they are `expected`. Gives a list that grows with each answer."""
    stop, answers = threading.Event(), []

    def client(number: int) -> None:
        while not stop.is_set():
            text = ask(server, BODIES[number])
            assert expected is None or text == expected[number]
            answers.append((time.monotonic(), number))

    with ThreadPoolExecutor(len(BODIES)) as threads:
        clients = [threads.submit(client, number) for number in range(len(BODIES))]
        try:
            until(lambda: len(answers) >= 2 or any(one.done() for one in clients), 60)
            yield answers
            count = len(answers)
            until(lambda: len(answers) >= count + 2 or any(one.done() for one in clients), 60)
        finally:
            stop.set()
        for one in clients:
            one.result()


def upgraded(server: Server, **wish) -> dict:
    response = server.post("/admin/upgrade", wish)
    assert response.status_code == 202, response.text
    until(lambda: server.http.get("/admin/upgrade").json()["state"] in ENDS, 120)
    return server.http.get("/admin/upgrade").json()


def cut_short(model: Path, copy: Path) -> Path:
    shutil.copyfile(model, copy)
    with copy.open("r+b") as file:
        file.truncate(model.stat().st_size // 2)
    return copy


@pytest.mark.slow
def test_upgrades_under_load_cost_nobody_anything(model_path: Path, tmp_path: Path):
    cut = cut_short(model_path, tmp_path / "cut.gguf")
    with model_server(model_path, "--admin", "--context", "1024", "--kv-memory", "256MiB") as server:
        undisturbed = [ask(server, body) for body in BODIES]
        with load(server, undisturbed):
            report = upgraded(server, python=sys.executable)
            assert (report["state"], report["reason"]) == ("done", None)
            assert report["gate"]["canaries_equal"] == 3
            assert report["warmed"]["prompts"] > 0
        with load(server, undisturbed):
            report = upgraded(server, model=str(cut))
            assert report["state"] == "rolled_back"
            assert "truncated" in report["reason"]
            report = upgraded(server, kv="int4", max_kl=1e-9)
            assert report["state"] == "rolled_back"
            assert report["reason"].startswith("gating: the new worker is ")
            assert report["gate"]["mean_kl"] > 1e-5
        with load(server, None):
            report = upgraded(server, kv="int8")
            assert (report["state"], report["reason"]) == ("done", None)
            assert 0 < report["gate"]["mean_kl"] < 0.01
            assert report["gate"]["canaries_equal"] is None
        assert server.metric("pitstop_worker_restarts_total") == 0
        assert server.metric('pitstop_requests_finished_total{reason="error"}') == 0
        assert_books_balance(server)


def test_another_model_takes_over_with_its_own_words(model_path: Path, tmp_path: Path):
    toy = toy_gguf.write_toy_gguf(tmp_path / "toy.gguf")
    with model_server(model_path, "--admin", "--context", "0", "--kv-memory", "256MiB") as server:
        text = {"model": server.model, "prompt": "Once upon a time"}
        before = server.post("/tokenize", text).json()["tokens"]
        report = upgraded(server, model=str(toy))
        assert (report["state"], report["reason"]) == ("done", None)
        assert report["gate"] == {"smoke_tokens": 64, "canaries_equal": None, "mean_kl": None, "same_top": None, "positions": None}
        assert server.post("/tokenize", text).json()["tokens"] != before
        assert server.complete("Once upon a time", max_tokens=8, ignore_eos=True).json()["usage"]["completion_tokens"] == 8
        assert server.http.get("/healthz?fresh=1").status_code == 200
        assert server.context == 1024
        assert upgraded(server, model=str(model_path))["state"] == "done"
        assert server.post("/tokenize", text).json()["tokens"] == before
