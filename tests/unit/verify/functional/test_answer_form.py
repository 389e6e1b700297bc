"""How answers are read, and the form that every one must have."""

from __future__ import annotations

import copy
import json

import pytest

from pitstop.verify.functional.answer import Answer, read_body, read_events
from pitstop.verify.functional.expect import Unmet
from pitstop.verify.functional.form import check_form

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
HEAD = {"id": "x", "created": 1, "model": "m"}
MESSAGE = {"role": "assistant", "content": "ab"}
CHAT = {**HEAD, "object": "chat.completion", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}], "usage": USAGE}
TEXT = {**HEAD, "object": "text_completion", "choices": [{"index": 0, "text": "ab", "finish_reason": "length"}], "usage": USAGE}
ERROR = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}}


def chunk(delta: dict, finish: str | None = None, index: int = 0, **more) -> dict:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice], **more}


STREAM = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "a"}),
    chunk({"content": "b"}),
    chunk({}, "stop"),
    {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE},
    "[DONE]",
]


def whole(body: object, status: int = 200) -> Answer:
    answer = Answer(status, {"content-type": "application/json"}, raw=json.dumps(body))
    read_body(answer)
    return answer


def streamed(events: list, kind: str = "text/event-stream; charset=utf-8", **more) -> Answer:
    raw = "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events)
    answer = Answer(200, {"content-type": kind}, raw=f": a comment\n\n{raw}", **more)
    read_events(answer)
    return answer


def altered(value: dict, path: str, new: object) -> dict:
    value = copy.deepcopy(value)
    *parents, last = path.split(".")
    inner = value
    for name in parents:
        inner = inner[int(name)] if isinstance(inner, list) else inner[name]
    if new is None:
        del inner[last]
    else:
        inner[last] = new
    return value


def test_streamed_and_whole_answers_read_alike() -> None:
    one, other = whole(CHAT), streamed(STREAM)
    check_form(one, "chat", streamed=False)
    check_form(other, "chat", streamed=True)
    for name in ("text", "texts", "finish", "finishes", "usage", "message"):
        assert getattr(one, name) == getattr(other, name), name
    assert (other.text, other.finish, other.usage, other.done, len(other.events)) == ("ab", "stop", USAGE, True, 5)


def test_log_probabilities_of_both_routes_read_alike() -> None:
    top = [{"token": "a", "logprob": -0.1, "bytes": [97]}]
    chat = altered(CHAT, "choices.0.logprobs", {"content": [{**top[0], "top_logprobs": top}]})
    text = altered(TEXT, "choices.0.logprobs", {"tokens": ["a"], "token_logprobs": [-0.1], "top_logprobs": [{"a": -0.1}]})
    assert [whole(body).tokens[0]["logprob"] for body in (chat, text)] == [-0.1, -0.1]
    assert whole(chat).tokens[0]["top"] == top
    assert whole(text).tokens[0]["top"] == [{"token": "a", "logprob": -0.1}]
    with pytest.raises(Unmet, match="one length"):
        whole(altered(text, "choices.0.logprobs.token_logprobs", []))


def test_a_streamed_call_is_put_together() -> None:
    def call(**function) -> dict:
        return {"tool_calls": [{"index": 0, "function": function}]}

    first = {"role": "assistant", "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]}
    answer = streamed([chunk(first), chunk(call(arguments='{"a":')), chunk(call(arguments="1}")), chunk({}, "tool_calls"), "[DONE]"])
    check_form(answer, "chat", streamed=True)
    assert answer.message["tool_calls"] == [{"function": {"name": "f", "arguments": '{"a":1}'}, "id": "c", "type": "function"}]
    with pytest.raises(Unmet, match="changes within the stream"):
        streamed([chunk(first), chunk({"tool_calls": [{"index": 0, "id": "d", "function": {}}]})])


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("object", "text_completion"),
        ("id", None),
        ("created", "now"),
        ("choices", None),
        ("choices.0.index", 1),
        ("choices.0.message.role", "user"),
        ("choices.0.message.content", None),
        ("choices.0.finish_reason", "done"),
        ("usage", None),
        ("usage.total_tokens", 6),
        ("usage.prompt_tokens", "3"),
        ("usage.completion_tokens", -1),
    ],
)
def test_a_chat_answer_without_its_form(path: str, new: object) -> None:
    with pytest.raises(Unmet):
        check_form(whole(altered(CHAT, path, new)), "chat", streamed=False)


@pytest.mark.parametrize(("path", "new"), [("object", "chat.completion"), ("choices.0.text", None), ("choices", [])])
def test_a_completion_without_its_form(path: str, new: object) -> None:
    check_form(whole(TEXT), "completion", streamed=False)
    with pytest.raises(Unmet):
        check_form(whole(altered(TEXT, path, new)), "completion", streamed=False)


FAULTY = {
    "it broke off": (STREAM[:3], "broke off after 3 events"),
    "no [DONE]": (STREAM[:5], "broke off"),
    "no finish": ([*STREAM[:3], "[DONE]"], "finish_reason for every choice"),
    "no role": ([*STREAM[1:]], "expected assistant"),
    "text after the finish": ([*STREAM[:4], chunk({"content": "c"}), "[DONE]"], "nothing of choice 0 after"),
    "two ids": ([*STREAM[:3], {**STREAM[3], "id": "y"}, "[DONE]"], "the same in all chunks"),
    "an error": ([*STREAM[:2], ERROR], "expected an answer, got the error"),
    "another object": ([{**STREAM[0], "object": "chat.completion"}, *STREAM[1:]], "chat.completion.chunk"),
    "usage that does not add up": ([*STREAM[:4], {**STREAM[4], "usage": {**USAGE, "total_tokens": 9}}, "[DONE]"], "together 5"),
    "one of two choices": ([STREAM[0], chunk({"role": "assistant"}, index=1), *STREAM[1:]], "got .0. of .0, 1."),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_stream_without_its_form(name: str) -> None:
    events, message = FAULTY[name]
    with pytest.raises(Unmet, match=message):
        check_form(streamed(events), "chat", streamed=True)


@pytest.mark.parametrize("events", [[*STREAM, STREAM[1]], [*STREAM[:2], "{broken"], ["5"]])
def test_events_that_cannot_be(events: list) -> None:
    with pytest.raises(Unmet, match="stream: expected"):
        streamed(events)


def test_a_stream_is_of_its_type_and_may_be_closed_by_us() -> None:
    with pytest.raises(Unmet, match="text/event-stream"):
        check_form(streamed(STREAM, kind="application/json"), "chat", streamed=True)
    check_form(streamed(STREAM[:2], closed=True), "chat", streamed=True)


@pytest.mark.parametrize("body", [{}, {"error": "no"}, {"error": {"message": ""}}, {"error": {"message": "no", "type": 5}}, [], "no"])
def test_an_error_without_its_form(body: object) -> None:
    check_form(whole(ERROR, 400), "chat", streamed=False)
    with pytest.raises(Unmet, match=r"^error"):
        check_form(whole(body, 400), "chat", streamed=False)


def test_a_stack_trace_is_no_error_message() -> None:
    with pytest.raises(Unmet, match="stack trace"):
        check_form(whole(altered(ERROR, "error.message", "Traceback (most recent call last): …"), 500), "", streamed=False)
