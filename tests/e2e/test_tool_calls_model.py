"""Calls of the default model, which was not trained for them: forced ones are valid all the same. With the real clients."""

from __future__ import annotations

import json

import pytest
from servers import Server

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


def check(arguments: str | dict) -> None:
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert set(given) == {"city", "unit"}
    assert len(given["city"]) <= 20
    assert given["unit"] in ("celsius", "fahrenheit")


@pytest.mark.parametrize(
    "choice", [pytest.param("required", marks=pytest.mark.slow), {"type": "function", "function": {"name": "get_weather"}}]
)
def test_chat(server: Server, choice: object):
    function = {"name": "get_weather", "description": "The weather of a city.", "parameters": SCHEMA, "strict": True}
    fields = {"tools": [{"type": "function", "function": function}], "tool_choice": choice, "max_tokens": 120, "seed": 1, "n": 2}
    whole = server.openai.chat.completions.create(model=server.model, messages=QUESTION, **fields)
    with server.openai.chat.completions.stream(model=server.model, messages=QUESTION, **fields) as stream:
        streamed = stream.get_final_completion()
    for first, second in zip(whole.choices, streamed.choices, strict=True):
        (call,) = first.message.tool_calls
        check(call.function.arguments)
        assert call.function.arguments == second.message.tool_calls[0].function.arguments
        assert first.finish_reason == second.finish_reason == "tool_calls"
        assert first.message.content is None
    history = [
        *QUESTION,
        whole.choices[0].message,
        {"role": "tool", "tool_call_id": whole.choices[0].message.tool_calls[0].id, "content": "Sunny."},
    ]
    again = server.openai.chat.completions.create(model=server.model, messages=history, tools=fields["tools"], max_tokens=8)
    assert again.choices[0].message.content


@pytest.mark.slow
def test_responses(server: Server):
    tools = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}]
    fields = {"input": QUESTION, "tools": tools, "tool_choice": "required", "max_output_tokens": 120, "temperature": 0}
    whole = server.openai.responses.create(model=server.model, **fields)
    with server.openai.responses.stream(model=server.model, **fields) as stream:
        streamed = stream.get_final_response()
    check(whole.output[0].arguments)
    assert whole.output[0].arguments == streamed.output[0].arguments
    format = {"type": "json_schema", "name": "weather", "schema": SCHEMA}
    answer = server.openai.responses.create(model=server.model, input=QUESTION, text={"format": format}, max_output_tokens=120)
    check(answer.output_text)


@pytest.mark.slow
def test_messages(server: Server):
    import anthropic

    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    tools = [{"name": "get_weather", "input_schema": SCHEMA}]
    fields = {"messages": QUESTION, "tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 120, "extra_body": {"temperature": 0}}
    whole = client.messages.create(model=server.model, **fields)
    with client.messages.stream(model=server.model, **fields) as stream:
        streamed = stream.get_final_message()
    check(whole.content[0].input)
    assert whole.content[0].input == streamed.content[0].input
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    words = client.messages.create(model=server.model, messages=QUESTION, max_tokens=12, extra_body={"temperature": 0})
    assert words.content[0].text
    assert words.stop_reason == "max_tokens"
