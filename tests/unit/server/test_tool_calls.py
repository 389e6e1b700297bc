"""Tools in chat: a model that was trained for them, and one that was not (case 21)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from servers import Server, fake_server, refused
from shapes import strictly

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
PARIS = '<tool_call>\\n{"name": "get_weather", "arguments": {"city": "Paris"}}\\n</tool_call>'
TIME = '<tool_call>\\n{"name": "now", "arguments": {}}\\n</tool_call>'
LIMITS = {"tools": TOOLS, "max_tokens": 2000}


@pytest.fixture(scope="module")
def trained() -> Iterator[Server]:
    with fake_server("--tool-template", worker=("--context", "8192")) as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    with fake_server(worker=("--context", "8192")) as server:
        yield server


def answer(server: Server, content: object, **fields) -> dict:
    """The answer, which is the same streamed and not, ids apart."""
    whole = server.chat(content, **LIMITS | fields)
    assert whole.status_code == 200, whole.text
    strictly(ChatCompletion, whole.json())
    chunks = server.chat_stream(content, **LIMITS | fields)
    for chunk in chunks:
        strictly(ChatCompletionChunk, chunk)
    folded = fold(chunks)
    assert [without_ids(choice) for choice in whole.json()["choices"]] == [without_ids(choice) for choice in folded]
    return whole.json()


def fold(chunks: list[dict]) -> list[dict]:
    """As a client would: every rule of OpenAI's stream is asserted on the way."""
    choices: dict[int, dict] = {}
    for part in (part for chunk in chunks for part in chunk["choices"]):
        delta = part["delta"]
        if part["index"] not in choices:
            assert delta["role"] == "assistant"
            choices[part["index"]] = {"content": None, "calls": [], "finish_reason": None}
        else:
            assert "role" not in delta
        choice = choices[part["index"]]
        assert choice["finish_reason"] is None, "something after the end"
        if delta.get("content") is not None:
            choice["content"] = (choice["content"] or "") + delta["content"]
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(choice["calls"]):
                assert piece["type"] == "function"
                assert piece["function"]["arguments"] == ""
                choice["calls"].append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
            else:
                assert piece["index"] == len(choice["calls"]) - 1
                assert set(piece) == {"index", "function"}
                assert set(piece["function"]) == {"arguments"}
                choice["calls"][-1]["function"]["arguments"] += piece["function"]["arguments"]
        choice["finish_reason"] = part["finish_reason"]
    made = []
    for index in sorted(choices):
        choice = choices[index]
        calls = {"tool_calls": choice["calls"]} if choice["calls"] else {}
        message = {"role": "assistant", "content": choice["content"] or (None if calls else ""), "refusal": None, **calls}
        made.append({"index": index, "message": message, "logprobs": None, "finish_reason": choice["finish_reason"]})
    return made


def without_ids(choice: dict) -> dict:
    ids = [call["id"] for call in choice["message"].get("tool_calls", ())]
    assert len(set(ids)) == len(ids)
    calls = [{**call, "id": "…"} for call in choice["message"].get("tool_calls", ())]
    return {**choice, "message": {**choice["message"], **({"tool_calls": calls} if calls else {})}}


def called(choice: dict) -> list[tuple[str, object]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in choice["message"].get("tool_calls", ())]


def test_case_21_a_call(trained: Server):
    (choice,) = answer(trained, f"#say {PARIS}#")["choices"]
    assert called(choice) == [("get_weather", {"city": "Paris"})]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    many = trained.chat_stream(f"#say {PARIS}#", **LIMITS)
    arguments = [part for chunk in many for part in chunk["choices"][0]["delta"].get("tool_calls", ()) if "id" not in part]
    assert len(arguments) > 5, "arguments come as they are made"


@pytest.mark.parametrize(("arguments", "status"), [('{"a": "\\ud83d"}', 400), ('{"a": "\\ud83d\\ude00"}', 200), ('{"a": "\\ud83d"', 200)])
def test_half_a_character_in_arguments_is_refused_by_name(trained: Server, arguments: str, status: int):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "x"}]
    reply = trained.chat(messages=[{"role": "user", "content": "#say hi#"}, *turns], max_tokens=3)
    assert reply.status_code == status
    if status == 400:
        refused(reply, 400, "messages[1].tool_calls[0].function.arguments")


def test_several_calls_and_words_around_them(trained: Server):
    (choice,) = answer(trained, f"#say Let me see.\\n{PARIS}\\n{TIME}\\nThere.#")["choices"]
    assert called(choice) == [("get_weather", {"city": "Paris"}), ("now", {})]
    assert choice["message"]["content"] == "Let me see.\n\n\nThere."
    assert choice["finish_reason"] == "tool_calls"


def test_every_choice_has_calls_and_ids_of_its_own(trained: Server):
    choices = answer(trained, f"#say {PARIS}{TIME}#", n=3)["choices"]
    assert [called(choice) for choice in choices] == [[("get_weather", {"city": "Paris"}), ("now", {})]] * 3
    ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 6


@pytest.mark.parametrize("text", ["Hello", "<tool_call>oops</tool_call>", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'])
def test_what_is_no_call_is_content(trained: Server, text: str):
    (choice,) = answer(trained, f"#say {text}#")["choices"]
    assert choice["message"]["content"] == text
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


def test_a_call_that_is_cut_says_so(trained: Server):
    (choice,) = answer(trained, f"#say {PARIS}#", max_tokens=60)["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "P'


def test_tools_are_in_the_prompt_unless_none_may_be_called(trained: Server):
    assert '"get_weather"' in trained.chat("#show#", **LIMITS).json()["choices"][0]["message"]["content"]
    for fields in ({"tool_choice": "none"}, {"tools": []}, {"tools": None}):
        assert "get_weather" not in trained.chat("#show#", **LIMITS | fields).json()["choices"][0]["message"]["content"]
    (choice,) = trained.chat(f"#say {PARIS}#", **LIMITS, tool_choice="none").json()["choices"]
    assert choice["message"]["content"].startswith("<tool_call>")
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "constrained"),
    [
        ({}, False),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, False),
        ({"tool_choice": "none"}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, True),
        ({"parallel_tool_calls": False}, True),
        ({"tools": [NOW, WEATHER | {"function": WEATHER["function"] | {"strict": True}}]}, True),
    ],
)
def test_what_must_hold_is_a_grammar(trained: Server, fields: dict, constrained: bool):
    content = trained.chat("#grammar#", **LIMITS | fields).json()["choices"][0]["message"]["content"]
    assert bool(content) == constrained, content
    if fields.get("tool_choice") == {"type": "function", "function": {"name": "now"}}:
        assert "get_weather" not in content


def test_a_conversation_with_calls_goes_on(trained: Server):
    first = trained.openai.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": f"#say {PARIS}#"}], tools=TOOLS, max_tokens=500
    )
    call = first.choices[0].message.tool_calls[0]
    messages = [
        {"role": "user", "content": "Weather?"},
        first.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "Sunny."}]},
        {"role": "user", "content": "#show#"},
    ]
    again = trained.openai.chat.completions.create(model="toy", messages=messages, tools=TOOLS, tool_choice="none", max_tokens=2000)
    prompt = again.choices[0].message.content
    assert '"arguments": {"city": "Paris"}' in prompt, "an object, which the template writes"
    assert "tool\nSunny.<|im_end|>" in prompt


def test_the_client_streams_calls(trained: Server):
    with trained.openai.chat.completions.stream(
        model="toy", messages=[{"role": "user", "content": f"#say Look: {PARIS}#"}], tools=TOOLS, max_tokens=500
    ) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in events
    assert json.loads(final.message.tool_calls[0].function.arguments) == {"city": "Paris"}
    assert final.finish_reason == "tool_calls"
    assert final.message.content == "Look:"


def test_log_probabilities_are_those_of_all_tokens(trained: Server):
    whole = trained.chat(f"#say {PARIS}#", **LIMITS, logprobs=True).json()
    chunks = trained.chat_stream(f"#say {PARIS}#", **LIMITS, logprobs=True)
    scores = whole["choices"][0]["logprobs"]["content"]
    assert len(scores) == whole["usage"]["completion_tokens"] - 1
    assert "".join(score["token"] for score in scores).startswith("<tool_call>\n{")
    streamed = [score for chunk in chunks for part in chunk["choices"] if part["logprobs"] for score in part["logprobs"]["content"]]
    assert streamed == scores


def test_a_model_that_was_not_trained_for_tools_gets_words(plain: Server):
    prompt = answer(plain, "#show#")["choices"][0]["message"]["content"]
    assert prompt.startswith("<|im_start|>system\nYou can call functions.")
    assert '{"name": "get_weather", "description": "The weather of a city.", "parameters": {"type": "object"' in prompt
    assert "Do so only where it helps" in prompt
    forced = plain.chat("#show#", **LIMITS, tool_choice="required").json()["choices"][0]["message"]["content"]
    assert "Call one of them now." in forced
    system = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "#show#"}]
    assert "system\nBe kind.\n\nYou can call" in plain.chat(**LIMITS, messages=system).json()["choices"][0]["message"]["content"]
    (choice,) = answer(plain, '#say {"name": "now", "arguments": {}}#')["choices"]
    assert called(choice) == [("now", {})]
    assert choice["finish_reason"] == "tool_calls"


def test_there_calls_and_results_are_text(plain: Server):
    calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate([("now", "{}"), ("get_weather", '{"city": "Paris"}'), ("now", "no JSON")])
    ]
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Well.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c0", "content": "noon"},
        {"role": "tool", "tool_call_id": "c1", "content": "Sunny."},
        {"role": "assistant", "content": None, "tool_calls": [calls[0] | {"id": "d"}]},
        {"role": "tool", "tool_call_id": "d", "content": "one"},
        {"role": "user", "content": "#show#"},
    ]
    prompt = plain.chat(messages=messages, max_tokens=2000).json()["choices"][0]["message"]["content"]
    assert prompt.replace("<|im_start|>", "").replace("<|im_end|>", "") == (
        'user\nWeather?\nassistant\nWell.\n{"name": "now", "arguments": {}}\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n'
        '{"name": "now", "arguments": "no JSON"}\nuser\nnow returned:\nnoon\n\nget_weather returned:\nSunny.\n'
        'assistant\n{"name": "now", "arguments": {}}\nuser\nnow returned:\none\nuser\n#show#\nassistant\n'
    )
    assert plain.post("/tokenize", {"messages": messages}).json()["count"] > 100


def tool(name: object = "f", **fields) -> dict:
    return {"type": "function", "function": {"name": name, **fields}}


def deep(levels: int) -> dict:
    return {"type": "object", "properties": {"x": deep(levels - 1)}} if levels else {}


WRONG = [
    ({"tool_choice": tool("other")}, "tool_choice"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"tool_choice": tool("now"), "tools": None}, "tool_choice"),
    ({"tools": [tool("now"), tool("now")]}, "tools[1].function.name"),
    ({"tools": [tool("no spaces")]}, "tools[0].function.name"),
    ({"tools": [tool("x" * 65)]}, "tools[0].function.name"),
    ({"tools": [tool(5)]}, "tools[0].function.name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
    ({"tools": [tool(parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
    ({"tools": [tool(parameters=deep(40))]}, "tools[0].function.parameters"),
    ({"tools": [tool(returns={})]}, "tools[0].function.returns"),
    ({"tools": [tool(f"f{number}") for number in range(129)]}, "tools"),
    ({"tools": [tool(f"f{number}", description="x" * 10_000) for number in range(30)]}, "tools"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"functions": [{"name": "f"}]}, "functions"),
]


@pytest.mark.parametrize(("fields", "field"), WRONG)
@pytest.mark.parametrize("stream", [False, True])
def test_case_21_wrong_tools_are_refused(trained: Server, fields: dict, field: str, stream: bool):
    refused(trained.chat(**LIMITS | fields, stream=stream), 400, field)


CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("turn", "field"),
    [
        ({"role": "tool", "content": "x", "tool_call_id": "d"}, "messages[2].tool_call_id"),
        ({"role": "tool", "content": "x"}, "messages[2].tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "c"}, "messages[2].tool_call_id"),
        ({"role": "tool", "tool_call_id": "c"}, "messages[2].content"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages[2].tool_calls"),
        ({"role": "assistant", "content": None}, "messages[2].content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages[2].content"),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "a b", "arguments": "{}"}}]},
            "messages[2].tool_calls[0].function.name",
        ),
        ({"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]}, "messages[2].tool_calls[0].type"),
        ({"role": "assistant", "content": "", "function_call": {"name": "f"}}, "messages[2].function_call"),
    ],
)
def test_case_21_turns_that_do_not_fit_are_refused(trained: Server, turn: dict, field: str):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [CALL]}, turn]
    refused(trained.chat(messages=messages), 400, field)


def test_a_form_and_calls_exclude_each_other(trained: Server):
    form = {"response_format": {"type": "json_object"}}
    assert "tool_choice: none" in refused(trained.chat(**LIMITS, **form), 400, "response_format")
    refused(trained.chat(**LIMITS, structured_outputs={"regex": "a+"}), 400, "structured_outputs")
    assert trained.chat("#say {}#", **LIMITS, **form, tool_choice="none").status_code == 200


def test_a_strict_function_that_cannot_be_enforced_is_refused(trained: Server):
    odd = {"type": "object", "properties": {"x": {"type": "string", "format": "color"}}}
    field = "tools[0].function.parameters.properties.x.format"
    refused(trained.chat(tools=[tool(parameters=odd, strict=True)]), 400, field)
    assert trained.chat(tools=[tool(parameters=odd)], tool_choice="required").status_code == 200
