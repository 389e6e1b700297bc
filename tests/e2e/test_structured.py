"""Answers of a given form: their neighbours, their bits, and what the default model makes of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from servers import Server
from toy_gguf import FIRST_BYTE, write_toy_gguf

from pitstop import LLM, SamplingParams, guide
from pitstop.engine.llm import RequestOutput
from pitstop.kv.capacity import page_bytes, stream_pages, tail_bytes
from pitstop.types import Request

FORMS = (
    guide.regex("[a-z ]{400}"),
    guide.json_schema({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "minItems": 200}),
    guide.lark('start: word ("-" word){30}\nword: /[A-C]{5}/'),
)
LENGTH = 24


def requests(constrained: bool) -> tuple[list[list[int]], list[SamplingParams]]:
    """Twelve of uneven lengths; every second one has a form, or would have."""
    prompts = [[FIRST_BYTE + (7 * i + j) % 256 for j in range(1 + 29 * i)] for i in range(12)]
    params = []
    for i in range(12):
        form = FORMS[i // 2 % 3] if i % 2 and constrained else ""
        free = {"grammar": form} if form else {"ignore_eos": True}
        params.append(SamplingParams(max_tokens=LENGTH, temperature=float(i % 3), seed=i, logprobs=3, **free))
    return prompts, params


def bits(outputs: list[RequestOutput]) -> list[tuple]:
    return [(choice.tokens, choice.logprobs, choice.text) for output in outputs for choice in output.choices]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", tied=False)


@pytest.fixture(scope="module")
def alone(toy: Path) -> list[tuple]:
    llm = LLM(toy, max_running=1, prefix_cache=False)
    return [answer for one in zip(*requests(True), strict=True) for answer in bits(llm.generate([one[0]], one[1]))]


def test_answers_have_their_forms(alone: list[tuple]) -> None:
    texts = [text for _, _, text in alone[1::2]]
    patterns = ("[a-z ]+", r"\[(\d{1,3}(, ?)?)*", "[A-C]{5}(-[A-C]{0,5})*-?")
    for i, text in enumerate(texts):
        assert len(text) == LENGTH
        assert re.fullmatch(patterns[i % 3], text), text


def test_constrained_and_free_requests_in_one_batch_equal_each_alone(toy: Path, alone: list[tuple]) -> None:
    prompts, params = requests(True)
    assert bits(LLM(toy).generate(prompts, params)) == alone
    assert bits(LLM(toy, prefill_chunk=16).generate(prompts, params)) == alone


def test_free_requests_do_not_notice_that_others_have_a_form(toy: Path, alone: list[tuple]) -> None:
    prompts, params = requests(False)
    free = bits(LLM(toy).generate(prompts, params))
    assert free[::2] == alone[::2]
    assert free[1::2] != alone[1::2]


def test_a_preempted_answer_ends_equal_to_the_bit(toy: Path, alone: list[tuple]) -> None:
    prompts, params = requests(True)
    llm = LLM(toy, max_running=4)
    codec, shape = llm.engine._runner.store.codec, llm.engine._runner.store.shape
    stream = stream_pages(len(prompts[-1]) + LENGTH, codec.lead_pages)
    small = LLM(
        toy, max_running=4, prefill_chunk=128, cached_tails=0, memory=7 * tail_bytes(codec, shape) + stream * page_bytes(codec, shape)
    )
    assert bits(small.generate(prompts, params)) == alone
    assert small.engine.scheduler.preemptions > 0


@pytest.mark.parametrize("cut", [1, 7, LENGTH - 1])
def test_an_answer_that_another_worker_goes_on_with_ends_equal_to_the_bit(toy: Path, alone: list[tuple], cut: int) -> None:
    engine = LLM(toy).engine
    for i, (prompt, params) in enumerate(zip(*requests(True), strict=True)):
        engine.submit(Request(id=str(i), prompt=prompt, params=params, emitted=alone[i][0][:cut]))
    rest: dict[str, list] = {str(i): [] for i in range(12)}
    while engine.busy:
        for output in engine.step():
            rest[output.id] += list(zip(output.tokens, output.logprobs or [], strict=True))
        engine.check()
    for i, (tokens, logprobs, _) in enumerate(alone):
        assert rest[str(i)] == list(zip(tokens, logprobs, strict=True))[cut:]


def test_an_answer_that_nothing_can_follow_ends_at_once(toy: Path) -> None:
    params = SamplingParams(max_tokens=100, temperature=0.0, grammar=guide.choice(["yes", "no"]), logprobs=0)
    (output,) = LLM(toy).generate([[5, 6]], params, n=2)
    for choice in output.choices:
        assert choice.text in ("yes", "no")
        assert len(choice.tokens) == len(choice.logprobs) == len(choice.text)
        assert choice.finish_reason == "stop"
    tight = SamplingParams(max_tokens=3, temperature=0.0, grammar=guide.choice(["yes"]))
    assert LLM(toy).generate([[5, 6]], tight)[0].finish_reason == "stop"


def test_stop_strings_and_stop_tokens_end_an_answer_wherever_they_come(toy: Path) -> None:
    llm = LLM(toy)
    base = {"max_tokens": 20, "temperature": 0.0, "grammar": guide.choice(["one, two, three"])}
    by_text = llm.generate([[5]], SamplingParams(stop=("two",), **base))[0]
    assert (by_text.text, by_text.finish_reason) == ("one, ", "stop")
    by_token = llm.generate([[5]], SamplingParams(stop_token_ids=(FIRST_BYTE + ord("w"),), **base))[0]
    assert (by_token.text, by_token.finish_reason) == ("one, t", "stop")


CHOOSE = "Answer with a JSON object."
COLOURS = ["红色", "绿色", "蓝色"]
TREE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": 0, "maximum": 9},
        "kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    },
    "required": ["value", "kids"],
    "additionalProperties": False,
}


def schema(value: dict) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": value}}}


def is_tree(value: object) -> bool:
    return isinstance(value, dict) and list(value) == ["value", "kids"] and value["value"] in range(10) and all(map(is_tree, value["kids"]))


FORMED = {
    "json_object": ({"response_format": {"type": "json_object"}}, lambda text: isinstance(json.loads(text), dict)),
    "schema": (
        schema({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"], "maxProperties": 1}),
        lambda text: len(json.loads(text)["name"]) <= 12,
    ),
    "chinese": (schema({"enum": COLOURS}), lambda text: json.loads(text) in COLOURS),
    "recursive": (schema(TREE), lambda text: is_tree(json.loads(text))),
    "regex": ({"structured_outputs": {"regex": r"\d{3}-\d{4}"}}, re.compile(r"\d{3}-\d{4}").fullmatch),
    "choice": ({"structured_outputs": {"choice": ["positive", "negative"]}}, ("positive", "negative").__contains__),
    "grammar": (
        {"structured_outputs": {"grammar": 'root ::= "I " ("like"|"hate") " " [a-z]{1,9} "."'}},
        re.compile(r"I (like|hate) [a-z]+\.").fullmatch,
    ),
    "json": ({"structured_outputs": {"json": {"type": "boolean"}}}, ("true", "false").__contains__),
}


@pytest.mark.model
@pytest.mark.parametrize("name", FORMED)
@pytest.mark.parametrize("temperature", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_default_model_answers_in_form(server: Server, name: str, temperature: int) -> None:
    fields, holds = FORMED[name]
    asked = {"max_tokens": 300, "temperature": temperature, "seed": 3} | fields
    whole = server.chat(CHOOSE, **asked).json()["choices"][0]
    events = server.chat_stream(CHOOSE, **asked)
    parts = [event["choices"][0] for event in events if event["choices"]]
    assert "".join(part["delta"].get("content", "") for part in parts) == whole["message"]["content"]
    assert parts[-1]["finish_reason"] == whole["finish_reason"]
    if name in ("json_object", "recursive") and whole["finish_reason"] == "length":
        return  # it may go on for ever, as any text may
    assert whole["finish_reason"] == "stop"
    assert holds(whole["message"]["content"]), whole


@pytest.mark.model
def test_several_choices_log_probabilities_and_the_other_route(server: Server) -> None:
    fields = {"structured_outputs": {"choice": ["cat", "dog", "cow"]}, "max_tokens": 20, "temperature": 1, "n": 4, "seed": 1}
    body = server.chat("Name an animal.", logprobs=True, top_logprobs=2, **fields).json()
    for choice in body["choices"]:
        assert choice["message"]["content"] in ("cat", "dog", "cow")
        scores = choice["logprobs"]["content"]
        assert "".join(score["token"] for score in scores) == choice["message"]["content"]
        assert any(score["token"] not in [top["token"] for top in score["top_logprobs"]] for score in scores), (
            "the model's own, not the mask's"
        )
    completion = server.complete("An animal:", logprobs=0, **fields).json()
    for choice in completion["choices"]:
        assert choice["text"] in ("cat", "dog", "cow")
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


@pytest.mark.model
def test_an_answer_that_is_cut_ends_with_length(server: Server) -> None:
    choice = server.chat(CHOOSE, max_tokens=3, **schema(TREE)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")


@pytest.mark.model
def test_the_openai_client_parses_an_answer(server: Server) -> None:
    from pydantic import BaseModel

    class Pet(BaseModel):
        kind: str
        legs: int

    answer = server.openai.chat.completions.parse(
        model=server.model, messages=[{"role": "user", "content": "A pet."}], response_format=Pet, max_tokens=200, temperature=1, seed=4
    )
    assert isinstance(answer.choices[0].message.parsed, Pet)
