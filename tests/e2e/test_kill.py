"""kill -9 of a worker in the middle of answers on the default model: what clients get is equal to the bit."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from servers import Server, children, model_server, until

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

STORY = "Once upon a time there was a little engine that "
SAMPLED = {"temperature": 0.9, "seed": 7, "ignore_eos": True}
BODIES: list[tuple[str, dict]] = [
    ("/v1/completions", {"prompt": STORY, "max_tokens": 60, "logprobs": 3, **SAMPLED}),
    ("/v1/completions", {"prompt": STORY * 30, "max_tokens": 45, "n": 2, "logprobs": 0, "top_p": 0.9, **SAMPLED}),
    ("/v1/completions", {"prompt": "1 2 3 4 5 6", "max_tokens": 150, "temperature": 0, "stop": ["24 25", "nothing"]}),
    ("/v1/completions", {"prompt": STORY, "max_tokens": 50, "echo": True, "logprobs": 1, "frequency_penalty": 0.7, **SAMPLED}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Tell me of the sea."}],
            "max_tokens": 50,
            "min_tokens": 40,
            "presence_penalty": 0.5,
            "repetition_penalty": 1.1,
            "temperature": 0.7,
            "seed": 3,
            "logprobs": True,
            "top_logprobs": 2,
        },
    ),
]


def ask(server: Server, path: str, body: dict) -> list[dict]:
    """A stream's choices, joined, with its usage; what depends on time and place left out."""
    events = server.stream(path, body | {"model": server.model, "stream_options": {"include_usage": True}})
    choices: dict[int, dict] = {}
    for event in events:
        for part in event["choices"]:
            choice = choices.setdefault(part["index"], {"text": "", "logprobs": [], "finish": None})
            choice["text"] += part["text"] if "text" in part else part["delta"].get("content", "")
            if part["logprobs"]:
                choice["logprobs"] += _rows(part["logprobs"])
            choice["finish"] = part["finish_reason"] or choice["finish"]
    usage = events[-1]["usage"]
    return [*(choices[index] for index in sorted(choices)), usage["prompt_tokens"], usage["completion_tokens"]]


def _rows(logprobs: dict) -> list:
    if "content" in logprobs:
        return logprobs["content"]
    return list(zip(*(logprobs[key] for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")), strict=True))


def all_at_once(server: Server, meanwhile=lambda: None) -> list:
    with ThreadPoolExecutor(len(BODIES)) as threads:
        answers = [threads.submit(ask, server, path, body) for path, body in BODIES]
        meanwhile()
        return [answer.result() for answer in answers]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_case_07_sigkill_mid_stream_changes_no_answer(model_path: Path, workers: int):
    with model_server(model_path, "--context", "1024", "--workers", str(workers), "--kv-memory", "256MiB") as server:
        undisturbed = all_at_once(server)
        assert [len(answer) for answer in undisturbed] == [3, 4, 3, 3, 3]
        generated, restarts = "pitstop_generated_tokens_total", "pitstop_worker_restarts_total"

        def kill(tokens: int) -> None:
            start = server.metric(generated)
            until(lambda: server.metric(generated) >= start + tokens, 30)
            os.kill(children(server.process.pid)[0], signal.SIGKILL)

        for count, tokens in enumerate((1, 80), 1):  # while prompts are computed, and in the middle of answers
            assert all_at_once(server, lambda tokens=tokens: kill(tokens)) == undisturbed
            until(lambda count=count: server.metric(restarts) == count, 10)
        assert server.metric("pitstop_requests_resumed_total") >= 12 // workers - 4

        def stop() -> None:
            until(lambda: server.metric("pitstop_requests_running") > 0, 30)
            os.kill(children(server.process.pid)[0], signal.SIGSTOP)
            start = time.monotonic()
            until(lambda: server.metric(restarts) == 3, 10)
            assert time.monotonic() - start > 1

        assert all_at_once(server, stop) == undisturbed
        assert server.metric('pitstop_requests_finished_total{reason="error"}') == 0
