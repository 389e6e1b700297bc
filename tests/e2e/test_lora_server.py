"""LoRA adapters in a real server on the default model: loaded while it serves, kept through kill -9, unloaded, changed."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lora_adapters import write_adapter
from servers import Server, children, model_server, refused, until

from pitstop.models.weights.source import open_model

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(300)]

STORY = "Once upon a time there was a little engine that "


def ask(server: Server, model: str, prompt: str = STORY * 20) -> dict:
    body = {"model": model, "prompt": prompt, "max_tokens": 60, "temperature": 0.8, "seed": 5, "ignore_eos": True, "logprobs": 2}
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def at_once(server: Server, models: list[str], meanwhile=lambda: None) -> list[dict]:
    with ThreadPoolExecutor(len(models)) as threads:
        answers = [threads.submit(ask, server, model) for model in models]
        meanwhile()
        return [answer.result() for answer in answers]


def test_adapters_in_a_server(model_path: Path, tmp_path: Path) -> None:
    config = open_model(model_path).config
    one, two, three = (write_adapter(tmp_path / f"{seed}", config, seed, rank=8, strength=0.2) for seed in (1, 2, 3))
    with model_server(model_path, "--context", "1024", "--kv-memory", "256MiB", "--admin", "--lora", f"one={one}") as server:
        models = ["the-model", "one"]
        single = {model: ask(server, model) for model in models}
        assert server.post("/admin/lora", {"name": "two", "path": str(two)}).status_code == 201
        single["two"] = ask(server, "two")
        assert len({answer["text"] for answer in single.values()}) == 3
        models = ["the-model", "one", "two", "two", "one", "the-model"]
        expected = [single[model] for model in models]
        assert at_once(server, models) == expected

        def kill() -> None:
            start = server.metric("pitstop_generated_tokens_total")
            until(lambda: server.metric("pitstop_generated_tokens_total") >= start + 100, 60)
            os.kill(children(server.process.pid)[0], signal.SIGKILL)

        assert at_once(server, models, kill) == expected
        assert server.metric("pitstop_requests_resumed_total") > 0
        assert server.http.delete("/admin/lora/two").status_code == 200
        refused(server.complete("hello", model="two"), 404, "model")
        assert server.post("/admin/lora", {"name": "two", "path": str(three)}).status_code == 201
        changed = ask(server, "two")
        assert changed["text"] != single["two"]["text"]
        assert at_once(server, ["one", "the-model", "two"]) == [single["one"], single["the-model"], changed]
        bad = write_adapter(tmp_path / "bad", config, 4, use_dora=True)
        assert "use_dora" in refused(server.post("/admin/lora", {"name": "bad", "path": str(bad)}), 400, "path")
        assert [model["id"] for model in server.http.get("/v1/models").json()["data"]] == ["the-model", "one", "two"]
        assert server.metric("pitstop_lora_adapters") == 2
