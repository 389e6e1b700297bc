"""Calls in text that comes in pieces: every format, and what is no call."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.guide.tools import Arguments, Begun, CallParser, Format, Words, format_of
from pitstop.guide.tools.fallback import FALLBACK
from pitstop.guide.tools.hermes import HERMES
from pitstop.guide.tools.llama3 import LLAMA3
from pitstop.guide.tools.mistral import MISTRAL, MISTRAL_NAMED

FORMATS = [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA3, FALLBACK]
NAMES = ("f", "get_weather")
NASTY = {"a": 'quo"te \\ {[<tool_call>]} </tool_call> [TOOL_CALLS]', "π": ["東京 🎉", None, True, -1.5e3], "deep": {"er": {"est": [{}]}}}


def read(format: Format, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """(content, calls as (name, arguments)) of an answer; also that events follow each other as they should."""
    parser = CallParser(format, NAMES)
    content, calls = "", []
    for events in [*map(parser.push, pieces), parser.finish()]:
        for before, event in zip([None, *events], events, strict=False):
            assert event[-1] != "", "an event of nothing"
            match event:
                case Words(text):
                    assert not isinstance(before, Words), "words in two events"
                    content += text
                case Begun(index, name):
                    assert index == len(calls)
                    calls.append((name, ""))
                case Arguments(index, text):
                    assert index == len(calls) - 1, "arguments of a call that is over"
                    calls[-1] = (calls[-1][0], calls[-1][1] + text)
    assert parser.calls == len(calls)
    return content, calls


def whole(format: Format, text: str) -> tuple[str, list[tuple[str, str]]]:
    found = read(format, [text])
    assert read(format, list(text)) == found, "a character at a time"
    return found


def written(format: Format, calls: list[tuple[str, dict]]) -> str:
    """As the format's grammar spells them."""
    each = [format.prefix + name + format.suffix + json.dumps(arguments, ensure_ascii=False) + format.tail for name, arguments in calls]
    return format.begin + format.between.join(each) + format.end


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_what_the_grammar_writes_the_parser_reads(format: Format):
    for calls in ([("f", {})], [("get_weather", NASTY), ("f", {"x": 1}), ("f", {"x": 1})]):
        content, found = whole(format, written(format, calls))
        assert content == ""
        assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@pytest.mark.parametrize("format", [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA3], ids=lambda format: format.name)
def test_text_before_and_after(format: Format):
    text = written(format, [("f", {"x": 1})])
    if format is LLAMA3:
        text = f"<|python_tag|>{text}"
    assert whole(format, f"Let me see. \n{text}\n Done.") == ("Let me see. \n\n Done.", [("f", '{"x": 1}')])
    assert whole(format, f" \n{text}\n") == ("", [("f", '{"x": 1}')])
    assert whole(format, f"\n{text} Done.\n") == ("Done.", [("f", '{"x": 1}')])


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
@pytest.mark.parametrize("text", ["", " ", "\n\n", "Hello", " Hello <b> [1] you; ", "a < b, [TOOL", "x <tool_", "1 { 2 }", "東京 🎉"])
def test_text_without_calls_is_content_to_the_letter(format: Format, text: str):
    assert whole(format, text) == (text, [])


BROKEN = [
    (HERMES, "<tool_call>"),
    (HERMES, "<tool_call>no JSON</tool_call>"),
    (HERMES, '<tool_call>{"name": "f", "arguments": 5}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": </tool_call> after'),
    (HERMES, '<tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>'),
    (HERMES, '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f"'),
    (HERMES, '<tool_call> [{"name": "f", "arguments": {}}]</tool_call>'),
    (HERMES, '{"name": "f", "arguments": {}}'),
    (MISTRAL, "[TOOL_CALLS]"),
    (MISTRAL, "[TOOL_CALLS] [ 5, 6]"),
    (MISTRAL, "[TOOL_CALLS] [[5]]"),
    (MISTRAL, '[TOOL_CALLS][{"name": "unknown", "arguments": {}}]'),
    (MISTRAL_NAMED, "[TOOL_CALLS]unknown[ARGS]{}"),
    (MISTRAL_NAMED, "[TOOL_CALLS]f[ARGS]5"),
    (MISTRAL_NAMED, "[TOOL_CALLS]f g{}"),
    (MISTRAL_NAMED, "[TOOL_CALLS]" + "f" * 300 + "{}"),
    (LLAMA3, "<|python_tag|>print(1)"),
    (LLAMA3, '{"name": "unknown", "parameters": {}}'),
    (LLAMA3, '{"a": 1}'),
    (LLAMA3, 'See {"name": "f", "parameters": {}}'),
    (FALLBACK, '{"name": "f", "arguments": [1]}'),
    (FALLBACK, "{" * 2000),
    (FALLBACK, '{"a": ' + "[" * 2000 + "]" * 2000 + "}"),
]


@pytest.mark.parametrize(("format", "text"), BROKEN)
def test_what_looks_like_a_call_and_is_none_is_content_to_the_letter(format: Format, text: str):
    assert whole(format, text) == (text, [])


def test_a_call_after_a_broken_one_is_found():
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert whole(HERMES, f"<tool_call>oops</tool_call>{call}") == ("<tool_call>oops</tool_call>", [("f", "{}")])
    assert whole(HERMES, f"<tool_call>{call}") == ("<tool_call>", [("f", "{}")])
    assert whole(HERMES, f"<tool_call>{{{call}") == ("<tool_call>{", [("f", "{}")])


def test_arguments_that_break_stay_as_they_came():
    assert whole(HERMES, '<tool_call>{"name": "f", "arguments": {"a": <oops>}}') == ("<oops>}}", [("f", '{"a": ')])
    assert whole(HERMES, '<tool_call>{"name": "f", "arguments": {"a": [1}}</tool_call> x') == ("}}</tool_call> x", [("f", '{"a": [1')])
    cut = CallParser(HERMES, NAMES)
    assert cut.push('<tool_call>{"name": "f", "arguments": {"a": "b') == [Begun(0, "f"), Arguments(0, '{"a": "b')]
    assert cut.calling
    assert cut.finish() == []
    assert cut.calling


OTHERWISE = [
    ('{"arguments": {"x": 1}, "name": "f"}', '{"x": 1}'),
    ('{ "name" : "f" ,\n "arguments" : {"x": 1} }', '{"x": 1}'),
    ('{"name": "f", "arguments": {"x": 1}, "id": "c{1}"}', '{"x": 1}'),
    ('{"id": 7, "name": "f", "parameters": {"x": "東京\\ud83c\\udf89"}}', '{"x": "東京🎉"}'),
    ('{"name": "f", "arguments": "{\\"x\\": 1}"}', '{"x": 1}'),
    ('{"name": "f"}', "{}"),
    ('{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}', '{"x": 1}'),
    ('{"name": "f", "arguments": {"x": "a\nb\tc"}}', '{"x": "a\\nb\\tc"}'),
    ('{"arguments": {"x": "a\nb"}, "name": "f"}', '{"x": "a\\nb"}'),
    ('{"arguments": {"x": "\\ud83c"}, "name": "f"}', '{"x": "\\ud83c"}'),
]


@pytest.mark.parametrize(("call", "arguments"), OTHERWISE)
def test_calls_that_are_written_otherwise(call: str, arguments: str):
    assert whole(HERMES, f"<tool_call>{call}</tool_call>") == ("", [("f", arguments)])
    assert whole(FALLBACK, call) == ("", [("f", arguments)])


def test_marks_that_are_missing_or_stand_otherwise():
    call, other = '{"name": "f", "arguments": {}}', '{"name": "get_weather", "arguments": {}}'
    both = ("", [("f", "{}"), ("get_weather", "{}")])
    assert whole(HERMES, f"<tool_call>{call}<tool_call>{other}") == both
    assert whole(HERMES, f"<tool_call>\n\n{call}\n</tool_call>\n\n<tool_call>{other}") == both
    assert whole(MISTRAL, f"[TOOL_CALLS] {call}") == ("", [("f", "{}")])
    assert whole(MISTRAL, f"[TOOL_CALLS] [{call} ,\n{other}") == both
    assert whole(MISTRAL, f"[TOOL_CALLS][{call}, oops]") == (", oops]", [("f", "{}")])
    assert whole(MISTRAL_NAMED, "[TOOL_CALLS]f[CALL_ID]a1[ARGS]{}[TOOL_CALLS]get_weather{}") == both
    assert whole(LLAMA3, '{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {}}') == both
    assert whole(LLAMA3, f"{call}; and so on") == ("; and so on", [("f", "{}")])
    assert whole(FALLBACK, f"{call}\n{other}") == both
    assert whole(FALLBACK, f"{call}\n{{}}") == ("{}", [("f", "{}")])


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<tool", "call>", "[", "]", ",", ";", "<", ">"),
        *('{"name": "f", "arguments": ', '{"name": "get_weather", "parameters": {', '{"a": "}"}', "{}", "}", "}}", "{", '"', "\\", ":"),
        *("f", "get_weather", "no", " ", "\n", "東京 🎉", '"name"', '"f"', "1", '{"arguments": {"x": "\n"}, "name": "f"}'),
    ]
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(FORMATS), st.lists(PIECES, max_size=14), st.data())
def test_how_text_is_cut_changes_nothing_and_nothing_is_lost(format: Format, parts: list[str], data: st.DataObject):
    text = "".join(parts)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    content, calls = found = read(format, pieces)
    assert found == whole(format, text)
    if not calls:
        assert content == text
    assert "".join(content.split()) in "".join(text.split()) or calls
    for name, _ in calls:
        assert name in NAMES


def test_long_answers_take_time_in_proportion():
    """Held text is looked at once: 2 MB of beginnings are read, not given up on."""
    for format, text in ((HERMES, "<tool_call>{" * 40_000), (LLAMA3, '{"a":' * 100_000), (FALLBACK, '{"a": "' + "{" * 1_000_000)):
        assert read(format, [text]) == (text, [])


TEMPLATES = {
    "hermes": '{% if tools %}<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>{% endif %}',
    "llama3": '{% if tools %}<|start_header_id|>Respond in the format {"name": function name, "parameters": dictionary}{% endif %}',
    "mistral": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]",
    "mistral-named": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]name[ARGS]",
    None: "{% for message in messages %}{{ message.content }}{% endfor %}",
}


def test_the_template_says_which_format():
    for name, template in TEMPLATES.items():
        found = format_of(template)
        assert (found and found.name) == name
    assert format_of('{% if tools %}<tool_call><function=f>"arguments"</tool_call>{% endif %}') is None
    assert format_of('<tool_call>{"arguments"') is None, "a template that takes no tools"


def test_ids():
    assert HERMES.new_id() != HERMES.new_id()
    assert HERMES.new_id().startswith("call_")
    assert len(MISTRAL.new_id()) == 9
    assert MISTRAL.new_id().isalnum()
