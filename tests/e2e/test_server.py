"""The server on the default model: the cases, and what only a model can show."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from cases.parameters import *  # noqa: F403
from cases.parameters import text_of, token
from cases.requests import *  # noqa: F403
from cases.structured import *  # noqa: F403
from cases.text import *  # noqa: F403
from servers import Server, until

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


def test_the_capital_of_france(server: Server):
    answer = server.openai.chat.completions.create(
        model=server.model, messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
    )
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"


def test_case_10_bias_of_minus_100_bans_a_token(server: Server):
    usual = server.complete("The capital of France is", max_tokens=1).json()["choices"][0]["text"]
    banned = token(server, usual)
    assert text_of(server.complete("The capital of France is", max_tokens=1, logit_bias={str(banned): -100})) != usual


def test_case_13_unseeded_answers_differ(server: Server):
    texts = {text_of(server.complete("Once upon a time", temperature=1, max_tokens=16)) for _ in range(4)}
    assert len(texts) > 1


def test_case_13_prompts_of_one_unseeded_request_differ(server: Server):
    choices = server.complete(["Once upon a time"] * 3, temperature=1, max_tokens=16).json()["choices"]
    assert len({choice["text"] for choice in choices}) > 1


def test_case_13_choices_of_one_seed_differ(server: Server):
    choices = server.complete("Once upon a time", temperature=1, seed=3, n=3, max_tokens=16).json()["choices"]
    assert len({choice["text"] for choice in choices}) == 3


def test_cached_tokens_are_reported(server: Server):
    prompt = "A prefix that is long enough to fill a segment of the cache, again and again. " * 20
    first = server.complete(prompt, max_tokens=1).json()["usage"]
    second = server.complete(prompt, max_tokens=1).json()["usage"]
    assert first["prompt_tokens"] == second["prompt_tokens"] > 256
    assert second["prompt_tokens_details"]["cached_tokens"] >= 128


def test_case_23_one_by_one_and_all_at_once_are_equal(server: Server):
    prompts = [f"{number} little ducks went out one day," for number in range(16)]

    def ask(prompt: str) -> dict:
        return server.complete(prompt, logprobs=2, max_tokens=12).json()["choices"][0]

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(ask, prompts))
    assert together == alone


def test_case_25_closed_during_prefill(server: Server):
    until(lambda: idle(server), 5)  # noqa: F405
    prompt = "word " * 900
    body = {"model": server.model, "prompt": [f"{number} {prompt}" for number in range(8)], "max_tokens": 50, "stream": True}
    with pytest.raises(TimeoutError), ThreadPoolExecutor(1) as threads:
        threads.submit(_give_up_soon, server, body).result()
    until(lambda: idle(server), 5)  # noqa: F405
    assert server.alive()


def _give_up_soon(server: Server, body: dict) -> None:
    try:
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=0.5)
    except httpx.ReadTimeout:
        raise TimeoutError from None
