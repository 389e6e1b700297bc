"""POST /v1/messages, with Anthropic's own client and types."""

from __future__ import annotations

import json
from collections.abc import Iterator

import anthropic
import httpx
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from servers import Server, fake_server
from shapes import strictly

TOOLS = [
    {
        "name": "get_weather",
        "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]
CALL = '<tool_call>\\n{"name": "get_weather", "arguments": {"city": "Paris"}}\\n</tool_call>'
KEY = "sk-test"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server("--tool-template", "--key", KEY, worker=("--context", "8192"), key=KEY) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=60)


def body(content: object, **fields) -> dict:
    return {"model": "toy", "max_tokens": 2000, "messages": [{"role": "user", "content": content}]} | fields


def events_of(server: Server, request: dict) -> list[dict]:
    response = server.post("/v1/messages", request | {"stream": True})
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def answer(server: Server, content: object, **fields) -> dict:
    """The message, which is the same streamed and not, ids apart."""
    whole = server.post("/v1/messages", body(content, **fields))
    assert whole.status_code == 200, whole.text
    strictly(Message, whole.json())
    events = events_of(server, body(content, **fields))
    for event in events:
        strictly(RawMessageStreamEvent, event)
    message: dict = {}
    for event in events:
        match event["type"]:
            case "message_start":
                assert not message
                message = event["message"]
                assert message["content"] == []
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(
                    event["content_block"] | {"text": ""} if "text" in event["content_block"] else event["content_block"]
                )
                joined = ""
            case "content_block_delta":
                assert event["index"] == len(message["content"]) - 1
                joined += event["delta"].get("text", event["delta"].get("partial_json"))
            case "content_block_stop":
                block = message["content"][-1]
                message["content"][-1] = block | ({"text": joined} if block["type"] == "text" else {"input": json.loads(joined)})
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    assert events[-1] == {"type": "message_stop"}
    assert anonymous(message) == anonymous(whole.json())
    return whole.json()


def anonymous(message: dict) -> dict:
    return message | {"id": "", "content": [block | ({"id": ""} if "id" in block else {}) for block in message["content"]]}


def test_words(server: Server):
    message = answer(server, "#say hello there#", system="Be kind.", temperature=0)
    assert message["content"] == [{"type": "text", "text": "hello there"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    usage = message["usage"]
    assert usage["output_tokens"] == len("hello there") + 1
    assert usage["cache_read_input_tokens"] == 3
    assert usage["input_tokens"] > 3
    assert answer(server, "#say hello there#", max_tokens=5)["stop_reason"] == "max_tokens"


def test_stop_sequences(server: Server):
    message = answer(server, "#say one two three#", stop_sequences=["three", "two"])
    assert message["content"] == [{"type": "text", "text": "one "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "two")
    assert answer(server, "#say one#", stop_sequences=["two"])["stop_reason"] == "end_turn"


def test_calls(server: Server):
    message = answer(server, f"#say Look:{CALL}{CALL}#", tools=TOOLS)
    assert message["stop_reason"] == "tool_use"
    text, *calls = message["content"]
    assert text == {"type": "text", "text": "Look:"}
    assert [(call["name"], call["input"]) for call in calls] == [("get_weather", {"city": "Paris"})] * 2
    assert calls[0]["id"] != calls[1]["id"]


def test_arguments_that_are_no_json_are_not_lost(server: Server):
    broken = '<tool_call>{"name": "get_weather", "arguments": {"city": Paris}}</tool_call>'
    (call,) = server.post("/v1/messages", body(f"#say {broken}#", tools=TOOLS)).json()["content"]
    assert call["input"] == {"INVALID_JSON": '{"city": Paris}'}
    lone = '<tool_call>{"name": "get_weather", "arguments": {"city": "\\\\ud83c"}}</tool_call>'
    response = server.post("/v1/messages", body([{"type": "text", "text": f"#say {lone}#"}], tools=TOOLS))
    assert response.status_code == 200, response.text


def test_the_client(client: anthropic.Anthropic):
    message = client.messages.create(**body(f"#say Look:{CALL}#"), tools=TOOLS)
    use = message.content[1]
    assert (use.type, use.input) == ("tool_use", {"city": "Paris"})
    history = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": message.content},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "Sunny."}], "is_error": True},
                {"type": "text", "text": "#show#", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]
    again = client.messages.create(model="toy", max_tokens=4000, messages=history, tools=TOOLS, system=system, tool_choice={"type": "none"})
    prompt = again.content[0].text
    assert "system\nBe kind." in prompt
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    turns = ["assistant\nLook:" + call, "tool\nError: Sunny.", "user\n#show#"]
    assert "<|im_end|>\n<|im_start|>".join(turns) in prompt
    with client.messages.stream(**body(f"#say Look:{CALL}#"), tools=TOOLS) as stream:
        assert "".join(stream.text_stream) == "Look:"
        final = stream.get_final_message()
    assert final.content[1].input == {"city": "Paris"}
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens > 50


def test_choices_of_tools(client: anthropic.Anthropic):
    def grammar(**choice) -> str:
        content = client.messages.create(**body("#grammar#"), tools=TOOLS, tool_choice=choice).content
        return content[0].text if content else ""

    assert grammar(type="auto") == grammar(type="none") == ""
    assert "start: calls" in grammar(type="any")
    assert ")*" in grammar(type="any")
    assert ")*" not in grammar(type="any", disable_parallel_tool_use=True)
    assert "start: calls" in grammar(type="tool", name="get_weather")
    assert "lead" in grammar(type="auto", disable_parallel_tool_use=True)


def test_a_form(client: anthropic.Anthropic):
    form = {"format": {"type": "json_schema", "schema": {"enum": ["one", "two"]}}}
    assert "%json" in client.messages.create(**body("#grammar#"), output_config=form).content[0].text


def test_counting(client: anthropic.Anthropic, server: Server):
    request = body("hello") | {"tools": TOOLS, "system": "Be kind."}
    counted = server.post("/v1/messages/count_tokens", {name: value for name, value in request.items() if name != "max_tokens"})
    strictly(MessageTokensCount, counted.json())
    usage = server.post("/v1/messages", request | {"max_tokens": 1}).json()["usage"]
    assert counted.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    more = client.messages.count_tokens(model="toy", messages=[{"role": "user", "content": "hello hello"}]).input_tokens
    assert more > client.messages.count_tokens(model="toy", messages=[{"role": "user", "content": "hello"}]).input_tokens > 5


def test_a_failure_in_a_stream_is_an_event(client: anthropic.Anthropic, server: Server):
    events = events_of(server, body("#fail 3##slow 5#"))
    assert events[-1]["type"] == "error"
    strictly(ErrorResponse, events[-1])
    with pytest.raises(anthropic.APIError), client.messages.stream(**body("#fail 3##slow 5#")) as stream:
        stream.get_final_message()


def said_no(response: httpx.Response, status: int, kind: str) -> str:
    assert response.status_code == status, response.text
    strictly(ErrorResponse, response.json())
    assert response.json()["error"]["type"] == kind
    assert response.json()["request_id"] == response.headers["x-request-id"]
    return response.json()["error"]["message"]


def user(*blocks: dict) -> dict:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


WRONG = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    (user({"type": "image", "source": {}}), "messages[0].content[0]"),
    (user({"type": "tool_use", "id": "c", "name": "f", "input": {}}), "messages[0].content"),
    (user({"type": "tool_result", "tool_use_id": "c", "content": "x"}), "messages[0].tool_use_id"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"temperature": -1}, "temperature"),
    ({"top_k": -5}, "top_k"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ({"n": 2}, "n"),
    ({"stop": ["x"]}, "stop"),
    ({"tools": TOOLS * 2}, "tools[1].name"),
    ({"tools": [TOOLS[0] | {"input_schema": {"type": "string"}}]}, "tools[0].input_schema.type"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [TOOLS[0] | {"type": "web_search_20250305"}]}, "tools[0].type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "auto", "name": "get_weather"}}, "tool_choice.name"),
    ({"tools": TOOLS, "tool_choice": "auto"}, "tool_choice"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "odd"}}}}, "output_config.format.schema.type"),
    ({"output_config": {"effort": "high"}}, "output_config.effort"),
]


@pytest.mark.parametrize(("fields", "field"), WRONG)
def test_what_is_not_honoured_is_refused_by_its_own_name(server: Server, fields: dict, field: str):
    for stream in (False, True):
        assert field in said_no(server.post("/v1/messages", body("x", stream=stream) | fields), 400, "invalid_request_error")


def test_errors_are_anthropics(server: Server, client: anthropic.Anthropic):
    said_no(server.post("/v1/messages", b"{"), 400, "invalid_request_error")
    said_no(server.post("/v1/messages", body("x") | {"model": "gpt-4"}), 404, "not_found_error")
    said_no(server.http.get("/v1/messages"), 405, "invalid_request_error")
    said_no(server.http.post("/v1/messages", content=b"x"), 415, "invalid_request_error")
    said_no(server.post("/v1/messages", body("x" * 20_000)), 400, "invalid_request_error")
    said_no(server.post("/v1/messages/count_tokens", {"model": "toy"}), 400, "invalid_request_error")
    said_no(server.post("/v1/messages", body("#fail 0#")), 500, "api_error")
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**body("x") | {"model": "gpt-4"})
    with pytest.raises(anthropic.BadRequestError, match="thinking"):
        client.messages.create(**body("x"), thinking={"type": "adaptive"})


def test_keys(server: Server):
    with httpx.Client(base_url=server.url) as http:
        said_no(http.post("/v1/messages", json=body("x")), 401, "authentication_error")
        said_no(http.post("/v1/messages", json=body("x"), headers={"x-api-key": "wrong"}), 401, "authentication_error")
        for headers in ({"x-api-key": KEY}, {"Authorization": f"Bearer {KEY}"}):
            assert http.post("/v1/messages", json=body("#say hi#"), headers=headers).status_code == 200
        wrong = {"x-api-key": KEY, "Authorization": "Bearer wrong"}
        assert http.get("/v1/models", headers=wrong).status_code == 401
