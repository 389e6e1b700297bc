"""The form of an answer, which every case checks: OpenAI's objects, whole streams, error objects."""

from __future__ import annotations

from typing import Any

from pitstop.verify.functional.answer import Answer
from pitstop.verify.functional.expect import Unmet

FINISHES = ("stop", "length", "tool_calls", "content_filter", "function_call")

_OBJECTS = {("chat", False): "chat.completion", ("chat", True): "chat.completion.chunk"}


def check_form(answer: Answer, route: str, streamed: bool) -> None:
    """route: "chat", "completion", or "" for one whose answers have no common form. Raises Unmet."""
    if answer.status >= 400:
        _check_error(answer)
    elif route and streamed:
        _check_stream(answer, route)
    elif route:
        _check_whole(answer, route)


def _must(held: Any, complaint: str) -> None:
    if not held:
        raise Unmet(complaint)


def _check_error(answer: Answer) -> None:
    """OpenAI's error object, in JSON, with words for people and none of the server's insides."""
    error = answer.error
    _must(isinstance(error, dict), f"error: expected OpenAI's error object with status {answer.status}, got {answer.raw[:120]!r}")
    for name in ("message", "type"):
        _must(isinstance(error.get(name), str) and error[name], f"error.{name}: expected text, got {error.get(name)!r}")
    _must("Traceback" not in answer.raw, f"error: shows a stack trace: {answer.raw[:120]!r}")


def _check_head(event: dict[str, Any], route: str, streamed: bool) -> None:
    wanted = _OBJECTS.get((route, streamed), "text_completion")
    _must(event.get("object") == wanted, f"object: expected {wanted!r}, got {event.get('object')!r}")
    for name, kind in (("id", str), ("created", int), ("model", str), ("choices", list)):
        _must(isinstance(event.get(name), kind), f"{name}: expected {kind.__name__}, got {event.get(name)!r}")


def _check_usage(usage: Any) -> None:
    _must(isinstance(usage, dict), f"usage: expected, got {usage!r}")
    for name, value in usage.items():
        _must(isinstance(value, int) and not isinstance(value, bool) and value >= 0, f"usage.{name}: expected a count, got {value!r}")
    total = usage["prompt_tokens"] + usage["completion_tokens"]
    _must(usage["total_tokens"] == total, f"usage: total_tokens is {usage['total_tokens']}, prompt and completion together {total}")


def _check_whole(answer: Answer, route: str) -> None:
    _must(isinstance(answer.body, dict), f"expected an object, got {answer.raw[:120]!r}")
    _check_head(answer.body, route, streamed=False)
    choices = answer.body["choices"]
    indices = [choice.get("index") for choice in choices]
    _must(indices == list(range(len(choices))) and choices, f"choices: expected one index each, from 0 on, got {indices}")
    for choice in choices:
        if route == "chat":
            message = choice.get("message")
            _must(isinstance(message, dict) and message.get("role") == "assistant", f"message: expected an assistant's, got {message!r}")
            _must("content" in message, "message.content: expected, null if nothing")
        else:
            _must(isinstance(choice.get("text"), str), f"text: expected a string, got {choice.get('text')!r}")
        _must(choice.get("finish_reason") in FINISHES, f"finish_reason: expected one of OpenAI's, got {choice.get('finish_reason')!r}")
    _check_usage(answer.usage)


def _check_stream(answer: Answer, route: str) -> None:
    kind = answer.headers.get("content-type", "")
    _must(kind.startswith("text/event-stream"), f"content-type: expected text/event-stream, got {kind!r}")
    _must(answer.error is None, f"stream: expected an answer, got the error {str(answer.error)[:200]}")
    ended: set[int] = set()
    seen: set[int] = set()
    for event in answer.events:
        _check_head(event, route, streamed=True)
        _must(event["id"] == answer.events[0]["id"], "id: expected the same in all chunks of a stream")
        for choice in event["choices"]:
            index = choice.get("index")
            _must(isinstance(index, int), f"index: expected a number, got {index!r}")
            _must(index not in ended, f"stream: expected nothing of choice {index} after its finish_reason")
            if route == "chat" and index not in seen:
                delta = choice.get("delta") or {}
                _must(delta.get("role") == "assistant", f"delta.role: expected assistant in a choice's first chunk, got {delta!r}")
            seen.add(index)
            if choice.get("finish_reason") is not None:
                _must(choice["finish_reason"] in FINISHES, f"finish_reason: expected one of OpenAI's, got {choice['finish_reason']!r}")
                ended.add(index)
    if not answer.closed:
        _must(answer.done, f"stream: expected [DONE] or an error event at its end; it broke off after {len(answer.events)} events")
        _must(seen and seen == ended, f"stream: expected a finish_reason for every choice, got {sorted(ended)} of {sorted(seen)}")
    if answer.usage is not None:
        _check_usage(answer.usage)
