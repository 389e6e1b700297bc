"""What the formats' grammars allow, by the library that the engine masks tokens with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from pitstop.errors import InvalidRequest
from pitstop.guide import Guides
from pitstop.guide.tools import CallParser, Format, Function
from pitstop.guide.tools.fallback import FALLBACK
from pitstop.guide.tools.hermes import HERMES
from pitstop.guide.tools.llama3 import LLAMA3
from pitstop.guide.tools.mistral import MISTRAL, MISTRAL_NAMED
from pitstop.types import TokenTable

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/name"}}, "required": ["city"], "additionalProperties": False}
WEATHER = Function("get_weather", "The weather.", CITY | {"$defs": {"name": {"enum": ["Paris", "東京"]}}}, strict=True)
FUNCTIONS = [WEATHER, Function("now")]
CONTROL = {"[TOOL_CALLS]": 257, "[ARGS]": 258, "<|python_tag|>": 259, "<tool_call>": 260}
END = 256
TABLE = TokenTable(
    [bytes([byte]) for byte in range(256)] + [b"<end>", *map(str.encode, CONTROL)], frozenset({END, *CONTROL.values()}), frozenset({END})
)
GUIDES = Guides(lambda: TABLE)


def as_control(text: str) -> Iterator[int | str]:
    for piece in re.split(f"({'|'.join(map(re.escape, CONTROL))})", text):
        if piece:
            yield CONTROL.get(piece, piece)


def as_text(text: str) -> Iterator[int | str]:
    return iter([text] if text else [])


def answers(format: Format, text: str, forced: bool, several: bool, cut=as_text) -> bool:
    """Whether `text` is a whole answer."""
    guide = GUIDES.guide(format.grammar(FUNCTIONS, forced, several, cut))
    tokens: list[int] = []
    for piece in cut(text):
        tokens += [piece] if isinstance(piece, int) else piece.encode()
    try:
        return guide.complete(tokens) or bool(guide.allowed(tokens)[END])
    except InvalidRequest:
        return False


def written(format: Format, *calls: tuple[str, dict]) -> str:
    each = [format.prefix + name + format.suffix + json.dumps(arguments, ensure_ascii=False) + format.tail for name, arguments in calls]
    return format.begin + format.between.join(each) + format.end


PARIS, TOKYO, NOW = ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "東京"}), ("now", {})
WRONG = [("get_weather", {"city": "Rome"}), ("get_weather", {}), ("other", {}), ("now", {"x": 1})]
FORMATS = pytest.mark.parametrize("format", [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA3, FALLBACK], ids=lambda format: format.name)
CUTS = pytest.mark.parametrize("cut", [as_text, as_control])


@FORMATS
@CUTS
def test_a_forced_answer_is_calls_and_nothing_else(format: Format, cut):
    for call in (PARIS, TOKYO, NOW):
        text = written(format, call)
        assert answers(format, text, True, True, cut)
        assert answers(format, text, True, False, cut)
        assert not answers(format, f"Well. {text}", True, True, cut)
        assert not answers(format, text[:-1], True, True, cut)
    for call in WRONG:
        assert not answers(format, written(format, call), True, True, cut)
    assert not answers(format, "Well.", True, True, cut)
    both = written(format, PARIS, NOW)
    assert answers(format, both, True, True, cut) == format.several
    assert not answers(format, both, True, False, cut)


@FORMATS
@CUTS
def test_an_unforced_answer_is_any_text_until_a_mark_begins_a_call(format: Format, cut):
    for several in (True, False):
        assert answers(format, "Well, {1} <b>\n東京", False, several, cut)
        assert answers(format, written(format, PARIS), False, several, cut)
        if not format.bare:
            assert answers(format, f"Well. {written(format, TOKYO)}", False, several, cut)
        for call in WRONG:
            assert not answers(format, written(format, call), False, several, cut)
    both = written(format, PARIS, NOW)
    assert answers(format, both, False, True, cut) == format.several
    assert not answers(format, both, False, False, cut)


@FORMATS
def test_the_parser_reads_what_the_grammar_allows(format: Format):
    parser = CallParser(format, [function.name for function in FUNCTIONS])
    parser.push(written(format, PARIS))
    parser.finish()
    assert parser.calls == 1
    assert not parser.calling


def test_what_a_strict_function_cannot_enforce_is_refused_and_another_takes_any_object():
    odd = {"type": "object", "properties": {"x": {"type": "string", "format": "color"}}}
    with pytest.raises(InvalidRequest, match=r"tools\[0\]\.parameters\.properties\.x\.format"):
        Function("f", None, odd, strict=True).schema("tools[0].parameters")
    assert Function("f", None, odd).schema() == {"type": "object"}
    assert Function("f").schema()["additionalProperties"] is False
