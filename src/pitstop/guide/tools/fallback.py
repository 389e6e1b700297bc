"""Calls of models whose chat template knows no tools, or has a format that we do not read: words in the system turn, JSON in the answer.

The functions stand in the system turn, a call is the whole answer, `{"name": …, "arguments": {…}}`, and results come back as user turns.
How well a model does what it was not trained for is its own affair; where a call is forced, a grammar sees to its form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pitstop.guide.tools.format import Format, Function

FALLBACK = Format(name="fallback", bare=True, several=False)

_WORDS = """You can call functions. Each line is one of them, in JSON:
{functions}

To call one, answer with nothing but a JSON object of its name and its arguments: {{"name": "…", "arguments": {{…}}}}
{when}"""


def instruct(messages: list[dict[str, Any]], functions: Iterable[Function], forced: bool, name: str | None = None) -> list[dict[str, Any]]:
    """Messages whose system turn says what can be called. forced: something must be, `name` if that is given."""
    lines = "\n".join(json.dumps(function.for_template()["function"], ensure_ascii=False) for function in functions)
    when = f"Call {name or 'one of them'} now." if forced else "Do so only where it helps; otherwise answer in words."
    words = _WORDS.format(functions=lines, when=when)
    if messages and messages[0]["role"] == "system":
        return [messages[0] | {"content": f"{messages[0]['content']}\n\n{words}"}, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]


def flatten(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages in which calls are text of the assistant's turns, and results that follow each other are one user turn."""
    flat: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    results = False
    for message in messages:
        if message["role"] == "tool":
            text = f"{names.get(message['tool_call_id'], 'The function')} returned:\n{message['content']}"
            if results:
                flat[-1] = flat[-1] | {"content": f"{flat[-1]['content']}\n\n{text}"}
            else:
                flat.append({"role": "user", "content": text})
            results = True
            continue
        results = False
        calls = message.get("tool_calls", ())
        names |= {call["id"]: call["function"]["name"] for call in calls}
        lines = [json.dumps(call["function"], ensure_ascii=False) for call in calls]
        plain = {name: value for name, value in message.items() if name != "tool_calls"}
        flat.append(plain | {"content": "\n".join(filter(None, [message["content"], *lines]))})
    return flat
