"""Cases 8–17: parameters."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from servers import Server, refused


def text_of(response) -> str:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def token(server: Server, text: str) -> int:
    """The id of a text that is one token."""
    (found,) = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    return found


def test_case_08_max_tokens_zero_and_less(server: Server):
    for name in ("max_tokens", "max_completion_tokens"):
        for value in (0, -1):
            fields = {"max_tokens": None, name: value}
            assert "at least 1" in refused(server.chat(**fields), 400, name)
    assert "echo" in refused(server.complete(max_tokens=0), 400, "max_tokens")
    refused(server.complete(max_tokens=-1, echo=True), 400, "max_tokens")
    refused(server.chat(max_tokens=5, max_completion_tokens=6), 400, "max_tokens")
    assert server.chat(max_tokens=5, max_completion_tokens=5).status_code == 200


def test_case_08_max_tokens_absent_or_null_is_the_rest_of_the_context_in_chat(server: Server):
    content = server.says("hi")
    body = {"model": server.model, "messages": [{"role": "user", "content": content}], "temperature": 0, "stop": ["\n"]}
    absent = text_of(server.post("/v1/chat/completions", body))
    assert text_of(server.post("/v1/chat/completions", body | {"max_tokens": None, "max_completion_tokens": None})) == absent
    assert absent


def test_case_08_max_tokens_absent_or_null_is_16_in_completions(server: Server):
    body = {"model": server.model, "prompt": "hello", "ignore_eos": True}
    for fields in ({}, {"max_tokens": None}):
        answer = server.post("/v1/completions", body | fields).json()
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["choices"][0]["finish_reason"] == "length"


def test_case_08_max_tokens_zero_scores_the_prompt_with_echo(server: Server):
    answer = server.complete("hello world", max_tokens=0, echo=True, logprobs=1).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("hello world", "length")
    tokens = server.post("/tokenize", {"prompt": "hello world"}).json()["tokens"]
    assert answer["usage"]["prompt_tokens"] == len(tokens) == len(choice["logprobs"]["tokens"])
    assert answer["usage"]["completion_tokens"] == 0
    assert "".join(choice["logprobs"]["tokens"]) == "hello world"
    assert choice["logprobs"]["token_logprobs"][0] is choice["logprobs"]["top_logprobs"][0] is None
    assert all(value <= 0 for value in choice["logprobs"]["token_logprobs"][1:])


@pytest.mark.parametrize("stream", [False, True])
def test_case_08_beyond_the_context_the_numbers_are_right(server: Server, stream: bool):
    messages = [{"role": "user", "content": "hello"}]
    prompt = len(server.post("/tokenize", {"messages": messages}).json()["tokens"])
    too_many = server.context - prompt + 1
    message = refused(server.chat(max_tokens=too_many, stream=stream), 400, "messages", "context_length_exceeded")
    for number in (server.context, prompt, too_many, server.context + 1):
        assert str(number) in message
    refused(server.complete(max_tokens=2**60), 400, "prompt", "context_length_exceeded")


@pytest.mark.parametrize(
    ("prompt", "path"),
    [
        ([-1], "prompt[0]"),
        ([999_999_999], "prompt[0]"),
        ([5, 10**40], "prompt[1]"),
        ([[5], [5, -7]], "prompt[1][1]"),
        ([5, True], "prompt[1]"),
        ([5.5], "prompt[0]"),
        ([5, "x"], "prompt[1]"),
        (["x", 5], "prompt[1]"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        ([[5], []], "prompt[1]"),
        (None, "prompt"),
        (5, "prompt"),
        ({}, "prompt"),
    ],
)
def test_case_09_prompts_that_cannot_be(server: Server, prompt: object, path: str):
    refused(server.complete(prompt), 400, path)
    assert server.alive()


def test_case_09_empty_prompts(server: Server):
    answer = server.complete("").json()  # BOS alone, as this model has one
    assert answer["usage"]["prompt_tokens"] == 1
    refused(server.chat(messages=[]), 400, "messages")
    refused(server.chat(messages=None), 400, "messages")
    refused(server.post("/v1/chat/completions", {"model": server.model}), 400, "messages")
    assert server.chat("").status_code == 200
    assert server.alive()


def test_case_09_every_kind_of_prompt(server: Server):
    ids = server.post("/tokenize", {"prompt": "hello world"}).json()["tokens"]
    expected = text_of(server.complete("hello world"))
    assert text_of(server.complete(ids)) == expected
    assert text_of(server.complete([float(i) for i in ids])) == expected  # JSON has one kind of number
    for prompt in (["hello world", "other"], [ids, ids[:1]]):
        choices = server.complete(prompt, n=2).json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
        assert choices[0]["text"] == choices[1]["text"] == expected


@pytest.mark.parametrize("value", [-1, 10**9, 2**31, 2**63])
def test_case_10_tokens_outside_the_vocabulary(server: Server, value: int):
    refused(server.complete(logit_bias={str(value): 1}), 400, "logit_bias")
    refused(server.complete(stop_token_ids=[value]), 400, "stop_token_ids")
    refused(server.chat(logit_bias={str(value): 1}), 400, "logit_bias")


def test_case_10_bias_that_cannot_be(server: Server):
    for bias in ({"x": 1}, {"1.0": 1}, {"": 1}, {"٣": 1}):
        refused(server.complete(logit_bias=bias), 400, "logit_bias")
    for value in (101, -100.5, "1", True, None, [], math.nan, math.inf):
        refused(server.complete(logit_bias={"5": value}), 400)
    refused(server.complete(logit_bias=[1]), 400, "logit_bias")


def test_case_10_bias_of_100_is_obeyed(server: Server):
    wanted = token(server, "q")
    assert text_of(server.complete("hello", logit_bias={str(wanted): 100})) == "q" * 8
    assert text_of(server.chat("hello", logit_bias={str(wanted): 100})) == "q" * 8
    stopped = server.complete("hello", logit_bias={str(wanted): 100}, stop_token_ids=[wanted]).json()
    assert (stopped["choices"][0]["text"], stopped["choices"][0]["finish_reason"]) == ("", "stop")


NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "timeout")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "NaN", "1", True, [], {}, 999_999, -3, 10**400])
def test_case_11_numbers_that_are_none_or_out_of_range(server: Server, name: str, value: object):
    refused(server.complete(**{name: value}), 400, name)


@pytest.mark.parametrize("name", NUMBERS)
def test_case_11_a_number_too_large_for_a_float(server: Server, name: str):
    body = json.dumps({"model": server.model, "prompt": "x", name: 1}).replace(f'"{name}": 1', f'"{name}": 1e400')
    refused(server.post("/v1/completions", body.encode()), 400, name)


@pytest.mark.parametrize("value", [2**65, -(10**400), 1e300])
@pytest.mark.parametrize("name", ["seed", "top_k", "max_tokens", "min_tokens", "logprobs", "n", "priority", "best_of"])
def test_case_11_an_integer_beyond_all_bounds(server: Server, name: str, value: object):
    refused(server.complete(**{name: value}), 400, name)


@pytest.mark.parametrize(
    ("name", "value"), [("top_p", -1), ("top_p", 0), ("top_k", -2), ("min_tokens", -1), ("priority", 10**30), ("n", 1.5)]
)
def test_case_11_more_that_is_out_of_range(server: Server, name: str, value: object):
    refused(server.complete(**{name: value}), 400, name)


def test_case_11_min_tokens_above_max_tokens(server: Server):
    refused(server.complete(max_tokens=4, min_tokens=5), 400, "min_tokens")


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"temperature": 1e-9}, {"top_k": 0}, {"top_k": -1}, {"top_k": 10**9}, {"min_p": 0.5}])
def test_case_12_greedy_is_greedy(server: Server, fields: dict):
    assert text_of(server.complete("Once upon a time", **fields)) == text_of(server.complete("Once upon a time"))


def test_case_12_one_token_to_choose_from_is_greedy(server: Server):
    expected = text_of(server.complete("Once upon a time"))
    assert text_of(server.complete("Once upon a time", temperature=5, top_k=1)) == expected
    assert text_of(server.complete("Once upon a time", temperature=5, top_p=1e-9)) == expected


def test_case_13_a_seed_gives_the_same_alone_and_in_company(server: Server):
    def draw(seed: int | None) -> str:
        return text_of(server.complete("Once upon a time", temperature=1, seed=seed, max_tokens=16))

    alone = draw(1234)
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(draw, [1234, None, None, 1234, None, 5, None, 1234]))
    assert together[0] == together[3] == together[7] == alone
    assert draw(1234) == alone


def test_case_13_seeds_out_of_range(server: Server):
    for seed in (2**64, -(2**64), 2**63, 1.5, "1", True):
        refused(server.complete(seed=seed), 400, "seed")
    for seed in (0, -1, 2**63 - 1, -(2**63), None):
        assert server.complete(seed=seed, max_tokens=1).status_code == 200


@pytest.mark.parametrize(("fields", "top"), [({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 5}, 5)])
def test_case_14_log_probabilities_in_chat(server: Server, fields: dict, top: int):
    choice = server.chat(**fields).json()["choices"][0]
    assert set(choice["logprobs"]) == {"content", "refusal"}
    for entry in choice["logprobs"]["content"]:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert -9999 <= entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == top
        assert all(set(other) == {"token", "logprob", "bytes"} for other in entry["top_logprobs"])
        logprobs = [other["logprob"] for other in entry["top_logprobs"]]
        assert logprobs == sorted(logprobs, reverse=True)
    joined = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"])
    assert joined.decode() == choice["message"]["content"] != ""
    events = server.chat_stream(**fields)
    streamed = [entry for event in events for c in event["choices"] if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert streamed == choice["logprobs"]["content"]


@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize("echo", [False, True])
def test_case_14_log_probabilities_in_completions(server: Server, count: int, echo: bool):
    choice = server.complete("hello world", logprobs=count, echo=echo).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len({len(values) for values in logprobs.values()}) == 1
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert choice["text"].startswith("hello world") == echo
    entries = list(zip(*(logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")), strict=True))
    for token, value, top, offset in entries[int(echo) :]:
        assert choice["text"][offset:].startswith(token)
        assert top[token] == value
        assert min(1, count) <= len(top) <= count + 1
    body = {"model": server.model, "prompt": "hello world", "max_tokens": 8, "temperature": 0, "logprobs": count, "echo": echo}
    streamed: dict[str, list] = {name: [] for name in logprobs}
    for event in server.stream("/v1/completions", body):
        for name, values in (event["choices"][0]["logprobs"] or {}).items():
            streamed[name] += values
    assert streamed == logprobs


def test_case_14_misuse(server: Server):
    refused(server.chat(top_logprobs=5), 400, "top_logprobs")
    refused(server.chat(logprobs=False, top_logprobs=5), 400, "top_logprobs")
    refused(server.chat(logprobs=True, top_logprobs=21), 400, "top_logprobs")
    refused(server.chat(logprobs=True, top_logprobs=-1), 400, "top_logprobs")
    refused(server.chat(logprobs=1), 400, "logprobs")
    refused(server.complete(logprobs=21), 400, "logprobs")
    refused(server.complete(logprobs=True), 400, "logprobs")
    refused(server.complete(top_logprobs=1), 400, "top_logprobs")


def test_case_14_with_the_openai_client(server: Server):
    answer = server.openai.chat.completions.create(
        model=server.model, messages=[{"role": "user", "content": "hello"}], max_tokens=3, logprobs=True, top_logprobs=2
    )
    assert all(len(entry.top_logprobs) == 2 for entry in answer.choices[0].logprobs.content)


def test_case_15_three_choices_streamed(server: Server):
    events = server.chat_stream(n=3, temperature=1, seed=7)
    for index in range(3):
        parts = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert [("role" in part["delta"]) for part in parts] == [True] + [False] * (len(parts) - 1)
        assert [part["finish_reason"] is not None for part in parts] == [False] * (len(parts) - 1) + [True]
        assert "".join(part["delta"].get("content", "") for part in parts)
    answer = server.chat(n=3, temperature=1, seed=7).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    folded = [
        "".join(c["delta"].get("content", "") for event in events for c in event["choices"] if c["index"] == index) for index in range(3)
    ]
    assert [choice["message"]["content"] for choice in answer["choices"]] == folded
    assert answer["usage"]["prompt_tokens"] == server.chat().json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("n", [0, -1, 17, 100_000, 2**70, "3", True])
def test_case_15_n_out_of_range(server: Server, n: object):
    for stream in (False, True):
        refused(server.chat(n=n, stream=stream), 400, "n")
    refused(server.complete(["a"] * 20, n=n), 400, "n")


def test_case_15_more_answers_than_the_queue_has_places(server: Server):
    refused(server.complete(["a"] * 300, n=1), 400, "prompt")


@pytest.mark.parametrize(("path", "needed"), [("/v1/chat/completions", ("model", "messages")), ("/v1/completions", ("model", "prompt"))])
def test_case_16_null_equals_absent(server: Server, path: str, needed: tuple[str, ...]):
    schema = server.http.get("/openapi.json").json()["components"]["schemas"]
    fields = schema["ChatRequest" if "chat" in path else "CompletionRequest"]["properties"]
    body = {"model": server.model, "messages": [{"role": "user", "content": "hello"}], "prompt": "hello"}
    nulls = {name: body.get(name) if name in needed else None for name in fields}
    assert len(nulls) > 30
    limits = {"temperature": 0, "max_tokens": 8}
    with_nulls = server.post(path, nulls | limits)
    absent = server.post(path, {name: body[name] for name in needed} | limits)
    assert text_of(with_nulls) == text_of(absent)
    for name in needed:
        refused(server.post(path, nulls | {name: None}), 400, name)


UNSUPPORTED = {
    "functions": [{}],
    "function_call": {"name": "f"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "prediction": {"type": "content", "content": "x"},
    "reasoning_effort": "high",
    "verbosity": "low",
    "web_search_options": {},
    "store": True,
    "service_tier": "flex",
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_case_16_what_is_not_honoured_is_refused(server: Server, name: str):
    assert "leave it out" in refused(server.chat(**{name: UNSUPPORTED[name]}), 400, name)


def test_case_16_values_that_change_nothing_are_taken(server: Server):
    harmless = {
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "store": False,
        "service_tier": "auto",
        "user": "u",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "explicit"},
        "metadata": {"a": "b"},
        "frequency_penalty": 0,
    }
    assert server.chat(**harmless).status_code == 200


def test_case_16_an_assistant_turn_as_the_openai_client_returns_it(server: Server):
    first = server.openai.chat.completions.create(
        model=server.model, messages=[{"role": "user", "content": "hello"}], max_tokens=3, temperature=0
    )
    again = [{"role": "user", "content": "hello"}, first.choices[0].message, {"role": "user", "content": "more"}]
    assert server.openai.chat.completions.create(model=server.model, messages=again, max_tokens=3).choices


@pytest.mark.parametrize("name", ["temprature", "max_new_tokens", "best_of_all", "é", "x" * 5000, ""])
def test_case_16_unknown_fields_are_refused(server: Server, name: str):
    refused(server.chat(**{name: 1}), 400)
    assert "unknown field" in refused(server.complete(**{name: 1}), 400)
    refused(server.chat(messages=[{"role": "user", "content": "x", "weight": 0}]), 400, "messages[0].weight")


def test_case_17_an_unknown_model(server: Server):
    for response in (
        server.chat(model="gpt-4"),
        server.complete(model="gpt-4"),
        server.complete(model=server.model.upper() + "x"),
        server.http.get("/v1/models/gpt-4"),
        server.post("/tokenize", {"model": "gpt-4", "prompt": "x"}),
    ):
        refused(response, 404, "model", "model_not_found")
    refused(server.chat(model=None), 400, "model")
    refused(server.chat(model=5), 400, "model")
    assert [model.id for model in server.openai.models.list()] == [server.model]
    assert server.openai.models.retrieve(server.model).id == server.model
