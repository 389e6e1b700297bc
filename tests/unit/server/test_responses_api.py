"""POST /v1/responses, with OpenAI's own client and types."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from servers import Server, fake_server, refused
from shapes import strictly

TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": False,
    }
]
CALL = '<tool_call>\\n{"name": "get_weather", "arguments": {"city": "Paris"}}\\n</tool_call>'


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server("--tool-template", worker=("--context", "8192")) as server:
        yield server


def events_of(server: Server, body: dict) -> list[dict]:
    response = server.post("/v1/responses", {"model": "toy", **body, "stream": True})
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def answer(server: Server, body: dict) -> dict:
    """The response, whose last event says the same, ids and times apart."""
    whole = server.post("/v1/responses", {"model": "toy", **body})
    assert whole.status_code == 200, whole.text
    strictly(Response, whole.json())
    last = events_of(server, body)[-1]["response"]
    assert anonymous(last) == anonymous(whole.json())
    return whole.json()


def anonymous(response: dict) -> dict:
    output = [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in response["output"]]
    return response | {"id": "", "created_at": 0, "completed_at": 0, "output": output}


def test_words(server: Server):
    response = answer(server, {"input": "#say hello there#", "instructions": "Be kind.", "metadata": {"a": "b"}, "max_output_tokens": 50})
    (item,) = response["output"]
    assert item["content"] == [{"type": "output_text", "text": "hello there", "annotations": [], "logprobs": []}]
    assert (response["status"], response["incomplete_details"]) == ("completed", None)
    assert (response["instructions"], response["metadata"], response["max_output_tokens"]) == ("Be kind.", {"a": "b"}, 50)
    usage = response["usage"]
    assert usage["output_tokens"] == len("hello there") + 1
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == 3


def test_the_events_of_an_answer(server: Server):
    events = events_of(server, {"input": f"#say Look:{CALL}#", "tools": TOOLS})
    for event in events:
        strictly(ResponseStreamEvent, event)
    kinds = [event["type"].removeprefix("response.") for event in events]
    once = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert once == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert events[0]["response"]["output"] == []
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert items == events[-1]["response"]["output"]
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == items[event["output_index"]]["id"]
    assert (
        "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        == "Look:"
        == items[0]["content"][0]["text"]
    )
    assert kinds.count("function_call_arguments.delta") > 5


def test_the_client(server: Server):
    client = server.openai
    response = client.responses.create(model="toy", input=f"#say Look:{CALL}#", tools=TOOLS)
    assert response.output_text == "Look:"
    call = response.output[1]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    history = [
        {"role": "user", "content": "Weather?"},
        *response.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."},
        {"role": "user", "content": [{"type": "input_text", "text": "#sh"}, {"type": "input_text", "text": "ow#"}]},
    ]
    again = client.responses.create(model="toy", input=history, tools=TOOLS, instructions="Be kind.", tool_choice="none")
    prompt = again.output_text
    assert "Be kind." in prompt
    assert 'assistant\nLook:<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call><|im_end|>' in prompt
    assert "tool\nSunny.<|im_end|>" in prompt
    with client.responses.stream(model="toy", input=f"#say Look:{CALL}#", tools=TOOLS) as stream:
        final = list(stream)[-1].response
    assert final.output_text == "Look:"
    assert json.loads(final.output[1].arguments) == {"city": "Paris"}


def test_choices_of_tools(server: Server):
    def grammar(**fields) -> str:
        return server.openai.responses.create(model="toy", input="#grammar#", tools=TOOLS, **fields).output_text

    assert grammar() == grammar(tool_choice="auto") == grammar(tool_choice="none") == ""
    assert "start: calls" in grammar(tool_choice="required")
    assert "start: calls" in grammar(tool_choice={"type": "function", "name": "get_weather"})
    assert "lead" in grammar(parallel_tool_calls=False)


def test_a_form(server: Server):
    format = {"type": "json_schema", "name": "a", "schema": {"enum": ["one", "two"]}}
    response = server.openai.responses.create(model="toy", input="#grammar#", text={"format": format})
    assert "%json" in response.output_text
    assert response.text.format.type == "json_schema"


def test_an_answer_that_is_cut_is_incomplete(server: Server):
    response = answer(server, {"input": "#say hello there#", "max_output_tokens": 5})
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    assert response["completed_at"] is None
    assert events_of(server, {"input": "#say hello there#", "max_output_tokens": 5})[-1]["type"] == "response.incomplete"


def test_a_failure_in_a_stream_is_an_event(server: Server):
    events = events_of(server, {"input": "#fail 3##slow 5#"})
    assert events[-1]["type"] == "error"
    strictly(ResponseStreamEvent, events[-1])
    assert server.post("/v1/responses", {"model": "toy", "input": "#fail 0#"}).status_code == 500


WRONG = [
    ({"store": True}, "store"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "c"}, "conversation"),
    ({"background": True}, "background"),
    ({"include": ["reasoning.encrypted_content"]}, "include"),
    ({"reasoning": {"effort": "high"}}, "reasoning"),
    ({"truncation": "auto"}, "truncation"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 9000}, "input"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": "x"}, {"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[1].call_id"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "a b", "arguments": "{}"}]}, "input[0].name"),
    ({"tool_choice": {"type": "function", "name": "other"}, "tools": TOOLS}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS * 2}, "tools[1].name"),
    ({"tools": [TOOLS[0] | {"parameters": {"type": "string"}}]}, "tools[0].parameters.type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    (
        {"tools": [TOOLS[0] | {"parameters": {"properties": {"x": {"type": "odd"}}}, "strict": True}]},
        "tools[0].parameters.properties.x.type",
    ),
    ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "odd"}}}}, "text.format.schema.type"),
    ({"text": {"format": {"type": "json_object"}}, "tools": TOOLS}, "text.format"),
    ({"seed": 2**64}, "seed"),
    ({"timeout": 1e9}, "timeout"),
]


@pytest.mark.parametrize(("fields", "field"), WRONG)
def test_what_is_not_honoured_is_refused_by_its_own_name(server: Server, fields: dict, field: str):
    for stream in (False, True):
        message = refused(server.post("/v1/responses", {"model": "toy", "input": "x", "stream": stream, **fields}), 400, field)
        assert "messages" not in message
        assert field in message or field == "input"


def test_null_equals_absent(server: Server):
    fields = server.http.get("/openapi.json").json()["components"]["schemas"]["ResponsesRequest"]["properties"]
    nulls = dict.fromkeys(fields) | {"model": "toy", "input": "#say hi#"}
    assert anonymous(server.post("/v1/responses", nulls).json()) == anonymous(answer(server, {"input": "#say hi#"}))


def test_other_errors_are_openais(server: Server):
    refused(server.post("/v1/responses", {"model": "gpt-4", "input": "x"}), 404, "model", "model_not_found")
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai.responses.create(model="toy", input="x", store=True)
    assert caught.value.param == "store"
