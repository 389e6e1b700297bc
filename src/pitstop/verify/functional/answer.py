"""An answer as expectations see it: one document, streamed or not, chat or completion."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

from pitstop.verify.functional.expect import Unmet


@dataclass
class Answer:
    """`text`, `finish`, `message` and `tokens` are choice 0's; `texts` and `finishes` are all choices', by index.

    usage: prompt_tokens, completion_tokens, total_tokens (all of it is in body.usage, or in the last event).
    tokens: one {token, logprob, bytes, top: [{token, logprob, bytes}]} a token, when log-probabilities came; bytes in chat only.
    events: a stream's chunks; done: [DONE] ended it. seconds: from sending to the last byte; first_seconds: to the first event.
    """

    status: int
    headers: dict[str, str]
    raw: str = ""
    body: Any = None
    error: Any = None
    events: list[Any] = field(default_factory=list)
    done: bool = False
    closed: bool = False  # by us, before its end
    message: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    texts: list[str] = field(default_factory=list)
    finish: str | None = None
    finishes: list[str | None] = field(default_factory=list)
    usage: dict[str, int] | None = None
    tokens: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    first_seconds: float = 0.0


FIELDS = frozenset(item.name for item in fields(Answer))


def read_body(answer: Answer) -> None:
    """Fill in what an answer of one piece has. A body that is no JSON stays None."""
    try:
        answer.body = json.loads(answer.raw)
    except ValueError:
        return
    if not isinstance(answer.body, dict):
        return
    answer.error = answer.body.get("error")
    choices = [choice for choice in _list(answer.body.get("choices")) if isinstance(choice, dict)]
    _settle(answer, {i: _Choice().add(choice, choice.get("message")) for i, choice in enumerate(choices)}, answer.body.get("usage"))


def read_events(answer: Answer) -> None:
    """Fold a stream's events. Raises Unmet for one that is neither JSON nor [DONE], or comes after [DONE]."""
    choices: dict[int, _Choice] = {}
    usage = None
    for data in _data(answer.raw):
        if answer.done:
            raise Unmet(f"stream: expected nothing after [DONE], got {data[:100]}")
        if data == "[DONE]":
            answer.done = True
            continue
        try:
            event = json.loads(data)
        except ValueError:
            raise Unmet(f"stream: expected an event of JSON, got {data[:100]}") from None
        answer.events.append(event)
        if not isinstance(event, dict):
            raise Unmet(f"stream: expected an object, got {data[:100]}")
        answer.error = event.get("error", answer.error)
        usage = event.get("usage") or usage
        for choice in _list(event.get("choices")):
            choices.setdefault(choice.get("index", 0), _Choice()).add(choice, choice.get("delta"))
    _settle(answer, choices, usage)


def _data(raw: str) -> list[str]:
    """The data of server-sent events; comments and other fields are passed over, as is an event that never ended."""
    events = []
    *whole, _ = raw.replace("\r\n", "\n").split("\n\n")
    for block in whole:
        lines = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        if lines:
            events.append("\n".join(lines))
    return events


def _list(value: Any) -> list:
    return value if isinstance(value, list) else []


class _Choice:
    """One choice, whole or in pieces."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self.text = ""
        self.finish: str | None = None
        self.tokens: list[dict[str, Any]] = []

    def add(self, choice: dict[str, Any], words: Any) -> _Choice:
        words = words if isinstance(words, dict) else {}
        self.text += choice.get("text") or words.get("content") or ""
        for key, value in words.items():
            if key == "tool_calls":
                for i, call in enumerate(_list(value)):
                    self._add_call(call, call.get("index", i))
            elif isinstance(value, str) and isinstance(self.message.get(key), str):
                self.message[key] += value
            elif value is not None or key not in self.message:
                self.message[key] = value
        self.finish = choice.get("finish_reason") or self.finish
        if isinstance(choice.get("logprobs"), dict):
            self.tokens += _tokens(choice["logprobs"])
        return self

    def _add_call(self, call: dict[str, Any], index: int) -> None:
        calls = self.message.setdefault("tool_calls", [])
        if index == len(calls):
            calls.append({"function": {"name": "", "arguments": ""}})
        if not 0 <= index < len(calls):
            raise Unmet(f"tool_calls: index {index} comes before {len(calls)}")
        function = call.get("function") or {}
        for key in ("name", "arguments"):
            calls[index]["function"][key] += function.get(key) or ""
        for key in ("id", "type"):
            if call.get(key):
                if calls[index].get(key, call[key]) != call[key]:
                    raise Unmet(f"tool_calls[{index}].{key}: changes within the stream")
                calls[index][key] = call[key]


def _tokens(logprobs: dict[str, Any]) -> list[dict[str, Any]]:
    if "content" in logprobs:
        return [_entry(entry) | {"top": list(map(_entry, entry.get("top_logprobs") or []))} for entry in _list(logprobs["content"])]
    names, values, tops = (_list(logprobs.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs"))
    tops = tops or [None] * len(names)
    if not len(names) == len(values) == len(tops):
        raise Unmet(f"logprobs: expected lists of one length, got {len(names)}, {len(values)} and {len(tops)}")
    return [
        {"token": name, "logprob": value, "top": [{"token": other, "logprob": p} for other, p in (top or {}).items()]}
        for name, value, top in zip(names, values, tops, strict=True)
    ]


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    return {"token": entry.get("token"), "logprob": entry.get("logprob"), "bytes": entry.get("bytes")}


def _settle(answer: Answer, choices: dict[int, _Choice], usage: Any) -> None:
    ordered = [choices[index] for index in sorted(choices)]
    answer.texts = [choice.text for choice in ordered]
    answer.finishes = [choice.finish for choice in ordered]
    if ordered:
        first = ordered[0]
        answer.text, answer.finish, answer.message, answer.tokens = first.text, first.finish, first.message, first.tokens
    if isinstance(usage, dict):
        answer.usage = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
