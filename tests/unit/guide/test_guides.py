"""What grammars allow, token by token, on a vocabulary of bytes and a few words."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from functools import partial, reduce

import numpy as np
import pytest
from toys import byte_tokens, toy_vocabulary

from pitstop import guide
from pitstop.errors import InvalidRequest
from pitstop.guide import Guides, grammar
from pitstop.guide.endless import MAX_NESTING, START, Endless, Place
from pitstop.guide.schema import ENFORCED, FORMATS
from pitstop.text.tokenizer import Tokenizer, token_table
from pitstop.types import TokenTable

TABLE = token_table(toy_vocabulary())
ENDS = (0, 2)
OPEN = {"additionalProperties": True}
THINK = 4


@pytest.fixture(scope="module")
def guides() -> Guides:
    return Guides(lambda: TABLE)


def reads(guides: Guides, grammar: str, text: str) -> str:
    """ "whole": `text` is an answer; "part": one may begin so; "no"."""
    at = guides.guide(grammar)
    tokens = byte_tokens(text.encode())
    for i, token in enumerate(tokens):
        try:
            if not at.allowed(tokens[:i])[token]:
                return "no"
        except InvalidRequest:
            return "no"
    if at.complete(tokens):
        return "whole"
    return "whole" if at.allowed(tokens)[2] else "part"


CASES = {
    "type": ({"type": "integer"}, "-12", "1.5"),
    "properties": ({"type": "object", "properties": {"a": {"type": "null"}}}, '{"a": null}', '{"a": 1}'),
    "required": ({"type": "object", "properties": {"a": True, "b": True}, "required": ["a"]}, '{"a":1}', '{"b":1}'),
    "additionalProperties": ({"type": "object", "properties": {"a": True}, "additionalProperties": False}, '{"a": 1}', '{"b": 1}'),
    "patternProperties": ({"type": "object", "patternProperties": {"^x": {"type": "null"}}}, '{"x1": null}', '{"x1": 1}'),
    "minProperties": ({"type": "object", "minProperties": 1}, '{"a": 1}', "{}"),
    "maxProperties": ({"type": "object", "maxProperties": 1}, '{"a": 1}', '{"a": 1, "b": 1}'),
    "items": ({"type": "array", "items": {"type": "boolean"}}, "[true, false]", "[1]"),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "null"}]}, "[null, 1]", "[1]"),
    "minItems": ({"type": "array", "minItems": 2}, "[1, 2]", "[1]"),
    "maxItems": ({"type": "array", "maxItems": 1}, "[1]", "[1, 2]"),
    "minLength": ({"type": "string", "minLength": 2}, '"红色"', '"红"'),
    "maxLength": ({"type": "string", "maxLength": 2}, '"红\\n"', '"abc"'),
    "pattern": ({"type": "string", "pattern": "^a+$"}, '"aa"', '"ab"'),
    "format": ({"type": "string", "format": "date"}, '"2024-02-28"', '"2024-2-28"'),
    "minimum": ({"type": "integer", "minimum": 7}, "7", "6"),
    "maximum": ({"type": "number", "maximum": 7}, "6.99", "7.01"),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 7}, "8", "7"),
    "exclusiveMaximum": ({"type": "number", "exclusiveMaximum": 7}, "6.5", "7"),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, "35", "36"),
    "enum": ({"enum": ["红色", "绿色", 3, None]}, '"绿色"', '"蓝色"'),
    "const": ({"const": {"a": [1, "x"]}}, '{"a": [1, "x"]}', '{"a": [1]}'),
    "anyOf": ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, "true", "1"),
    "oneOf": ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, "null", "1"),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, "4", "6"),
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "null", "1"),
    "$defs": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "null", "1"),
    "definitions": ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "null"}}}, "null", "1"),
}


@pytest.mark.parametrize("keyword", sorted(ENFORCED))
def test_each_keyword_that_is_taken_is_enforced(guides: Guides, keyword: str) -> None:
    schema, good, bad = CASES[keyword]
    assert reads(guides, guide.json_schema(schema), good) == "whole"
    assert reads(guides, guide.json_schema(schema), bad) in ("no", "part")
    json.loads(good), json.loads(bad)


GOOD_FORMATS = {
    "date-time": ("2024-02-28T12:00:00Z", "2024-02-28"),
    "time": ("12:00:00Z", "25:00:00Z"),
    "date": ("2024-02-28", "2024-13-28"),
    "duration": ("P1D", "1 day"),
    "email": ("a@b.example", "a.example"),
    "hostname": ("a.example", "-a-"),
    "ipv4": ("127.0.0.1", "256.0.0.1"),
    "ipv6": ("::1", ":::1"),
    "uuid": ("12345678-1234-1234-1234-123456789abc", "1234"),
    "uri": ("https://a.example/b?c#d", "not a uri"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_that_is_taken_is_enforced(guides: Guides, name: str) -> None:
    good, bad = GOOD_FORMATS[name]
    form = guide.json_schema({"type": "string", "format": name})
    assert reads(guides, form, f'"{good}"') == "whole"
    assert reads(guides, form, f'"{bad}"') in ("no", "part")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"a":1,"b":[1,{}]}', "whole"),
        ('{"a": 1, "b": [1, {}]}', "whole"),
        ('{"a":  1}', "no"),
        ('{ "a": 1}', "no"),
        ('{"a": 1 }', "no"),
        ('{"a": 1,\n"b": 2}', "no"),
        (" {", "no"),
        ("{}", "whole"),
        ("{} ", "no"),
        ("[]", "no"),
        ('{"a": "\\n\\"\\\\"}', "whole"),
        ('{"a": "\\u0061"}', "no"),
        ('{"a": "\\u0001"}', "no"),
        ('{"\\u0061": 1}', "no"),
        ('{"a": "\n"}', "no"),
        ('{"a": "红 🙂"}', "whole"),
    ],
)
def test_how_json_is_spelled(guides: Guides, text: str, verdict: str) -> None:
    assert reads(guides, guide.json_object(), text) == verdict


def test_a_declared_name_cannot_come_by_another_spelling(guides: Guides) -> None:
    form = guide.json_schema({"type": "object", "properties": {"a/b": {"type": "null"}}, "additionalProperties": True})
    assert reads(guides, form, '{"a\\/b": 1}') == reads(guides, form, '{"a/b": 1}') == "no"
    assert reads(guides, form, '{"a/c": 1}') == "whole"


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (guide.regex(r"[a-c]+/\d"), "ab/7", "ab/x"),
        (guide.regex(r"\d+"), "12", "١٢"),
        (guide.regex(r"[\w.]+"), "a_1.", "é"),
        (guide.json_schema({"type": "string", "pattern": r"^\d+$"}), '"12"', '"١٢"'),
        (guide.json_schema({"type": "string", "pattern": r"^[\w.]+$"}), '"a_1."', '"é"'),
        (guide.regex("^a|b$"), "a", "c"),
        (guide.regex("(?i)yes|no"), "YES", "maybe"),
        (guide.choice(["yes", 'n"o\n', "红"]), "红", "绿"),
        (guide.choice(["yes", 'n"o\n']), 'n"o\n', "no"),
        (guide.lark('start: "a" b*\nb: /[0-9]/'), "a12", "ab"),
        (guide.lark('start: greeting "!"\ngreeting: "hi" | "hello"'), "hello!", "hey"),
        (guide.lark('root ::= "a" [0-9]+'), "a12", "b"),
        (guide.lark('start: "x" j\nj: %json {"type": "integer", "maximum": 3}'), "x3", "x4"),
    ],
)
def test_other_forms(guides: Guides, form: str, good: str, bad: str) -> None:
    guides.check(form)
    assert reads(guides, form, good) == "whole"
    assert reads(guides, form, bad) in ("no", "part")


def test_a_choice_may_hold_any_character(guides: Guides) -> None:
    for code in (*range(0x300), *range(0x2000, 0x2070), 0xFEFF, 0xFFF9, 0xFFFE, 0xFFFF, 0x1F600, 0xE0001, 0x10FFFF):
        form = guide.choice([f"a{chr(code)}b"])
        assert reads(guides, form, f"a{chr(code)}b") == "whole", hex(code)


NAMED = [f"p{i}" for i in range(998)]
OPTIONAL = {"type": "object", "properties": {name: {"type": "string"} for name in NAMED}}


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (guide.choice([f"option {i}" for i in range(5000)]), "option 4999"),
        (guide.json_schema({"enum": [f"value {i}" for i in range(5000)]}), '"value 4999"'),
        (guide.json_schema({"enum": list(range(5000))}), "4999"),
        (guide.json_schema({"type": "array", "items": {"enum": [[i] for i in range(2499)]}}), "[[2498], [3]]"),
        (guide.json_schema({"enum": [{"a": i} for i in range(2500)]}), '{"a": 2499}'),
        (guide.json_schema(OPTIONAL), '{"p7": "x", "p700": "y"}'),
        (guide.json_schema({"type": "object", "properties": {"o": OPTIONAL}, "required": ["o"]}), '{"o": {"p997": "x"}}'),
        (guide.json_schema(OPTIONAL | OPEN), '{"p7": "x", "other": 1}'),
        (guide.json_schema(OPTIONAL | {"required": NAMED}), json.dumps(dict.fromkeys(NAMED, ""))),
        (guide.json_schema({"anyOf": [{"type": "array", "items": {"maxLength": i}} for i in range(499)]}), '["a"]'),
        (guide.json_schema({"type": "array", "prefixItems": [{"type": "boolean"}] * 999}), "[" + ", ".join(["true"] * 999) + "]"),
    ],
)
def test_what_the_limits_allow_is_followed_to_the_end(guides: Guides, form: str, text: str) -> None:
    guides.check(form)
    assert reads(guides, form, text) == "whole"


def test_too_many_alternatives_are_refused_before_the_answer_begins(guides: Guides) -> None:
    form = guide.choice([f"w{i}" for i in range(9000)])
    with pytest.raises(InvalidRequest, match=r"^f: .*[Cc]urrent row has \d+ items") as refused:
        guides.check(form, "f")
    assert len(str(refused.value)) < 500
    assert "w8999" not in str(refused.value)


def test_end_tokens_come_when_the_answer_is_whole_and_control_tokens_never(guides: Guides) -> None:
    at = guides.guide(guide.regex("ab?"))
    for text, whole in ((b"", False), (b"a", True)):
        allowed = at.allowed(byte_tokens(text))
        assert [allowed[end] for end in ENDS] == [whole, whole]
        assert not allowed[[1, 3]].any()
    assert not at.complete(byte_tokens(b"a"))
    assert at.complete(byte_tokens(b"ab"))
    assert np.flatnonzero(at.allowed(byte_tokens(b"ab"))).tolist() == list(ENDS)


@pytest.mark.parametrize(
    ("schema", "text", "verdict"),
    [
        ({"type": "number"}, "0." + "1" * 20, "whole"),
        ({"type": "number"}, "0." + "1" * 21, "no"),
        ({"type": "number"}, "0." + "1" * 20 + "e-5", "whole"),
        ({"type": "string"}, '"' + "1" * 20 + "a" + "1" * 20 + '"', "whole"),
        ({"type": "string"}, '"' + "1" * 21 + '"', "no"),
        ({"const": "1" * 30}, '"' + "1" * 30 + '"', "whole"),
        ({"type": "string", "pattern": "^[0-9]{30}$"}, '"' + "7" * 30 + '"', "whole"),
        ({"type": "string", "format": "time"}, '"12:00:00.' + "1" * 21 + 'Z"', "no"),
    ],
)
def test_digits_in_a_row_are_held_short_where_something_else_can_follow(guides: Guides, schema: dict, text: str, verdict: str) -> None:
    assert reads(guides, guide.json_schema(schema), text) == verdict


def test_digits_of_a_regular_expression_are_the_users_own(guides: Guides) -> None:
    assert reads(guides, guide.regex("[0-9]*"), "1" * 50) == "whole"


@pytest.mark.parametrize(
    ("schema", "text", "verdict"),
    [
        ({"type": "number"}, "-1.5E+99", "whole"),
        ({"type": "number"}, "1e400", "no"),
        ({"type": "number"}, "1e-100", "no"),
        ({"type": "object"}, '{"a": 1e99, "b": [2.5e-07]}', "whole"),
        ({"type": "object"}, '{"a": [1, 1E100]}', "no"),
        ({"type": "object"}, '{"1e400": "2e400 [3e400"}', "whole"),
        ({"type": ["integer", "null"]}, "9" * 15, "whole"),
        ({"type": ["integer", "null"]}, "9" * 16, "no"),
    ],
)
def test_numbers_are_finite(guides: Guides, schema: dict, text: str, verdict: str) -> None:
    assert reads(guides, guide.json_schema(schema), text) == verdict


@pytest.mark.parametrize(
    ("before", "barred"),
    [
        ([], ["e400", ",1e400"]),
        (["1"], ["e400", ",1e400"]),
        (["1e"], ["400", "+400", "e400", ",1e400"]),
        (["[", "1e", "4"], ["40", "400", "+400", "e400", ",1e400"]),
        (["[", "1", "e", "40"], ["1", "4", "40", "400", "+400", "1e", "e400", ",1e400"]),
        (["[", "400"], ["e400", ",1e400"]),
        (["[", '"', "1e", "40"], []),
        (["word ", "1e", "40"], []),
        (["word "], []),
    ],
)
def test_exponents_are_held_short_in_longer_tokens_too(before: list[str], barred: list[str]) -> None:
    pieces = ["1", "4", "40", "400", "+400", "1e", "e", "e400", ",1e400", "[", '"', '"e400', "word "]
    endless = Endless(TokenTable([piece.encode() for piece in pieces], frozenset(), frozenset()), len(pieces))
    tokens = [pieces.index(piece) for piece in before]
    masks = endless.barred(tokens, reduce(endless.after, tokens, START))
    assert [piece for i, piece in enumerate(pieces) if any(mask[i] for mask in masks)] == barred


def nodes(count: int) -> str:
    return '{"value": "[{", "next": ' * count + "null" + "}" * count


NODES = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["value", "next"],
        }
    },
}
DEEP = reduce(lambda inner, _: {"type": "array", "items": inner, "minItems": 1}, range(30), {"type": "boolean"})


@pytest.mark.parametrize(
    ("schema", "text", "verdict"),
    [
        (NODES, nodes(16), "whole"),
        (NODES, nodes(17), "no"),
        ({"type": "object"}, '{"a": ' + "[" * 15 + "]" * 15 + ', "b": [[]]}', "whole"),
        ({"type": "object"}, '{"a": ' + "[" * 16 + "]" * 16 + "}", "no"),
        ({"type": "string"}, '"' + '\\"[{' * 20 + '"', "whole"),
        (DEEP, "[" * 30 + "true" + "]" * 30, "whole"),
    ],
)
def test_brackets_within_brackets_are_held_short_where_something_else_can_follow(
    guides: Guides, schema: dict, text: str, verdict: str
) -> None:
    json.loads(text)
    assert reads(guides, guide.json_schema(schema), text) == verdict


@pytest.mark.parametrize(
    ("fields", "text", "verdict"),
    [
        ({"format": "uri"}, "a" * 40 + ":b", "whole"),
        ({"format": "uri"}, "a" * 41 + ":b", "no"),
        ({"format": "uri"}, "https://" + "a" * 60 + "/b:c", "whole"),
        ({"format": "uri", "pattern": "^a+:b$"}, "a" * 41 + ":b", "no"),
        ({"format": "uri", "pattern": "^a+:b$", "allOf": [{"maxLength": 4}]}, "aa:b", "whole"),
        ({"format": "uri", "allOf": [{"maxLength": 4}]}, "aaa:b", "no"),
        ({"format": "time"}, "12:00:59.5Z", "whole"),
        ({"format": "time"}, "12:00:60Z", "no"),
        ({"format": "date-time"}, "2024-02-28T23:59:60Z", "no"),
        ({"format": "date"}, "2024-02-29", "whole"),
        ({"format": "date"}, "2000-02-29", "whole"),
        ({"format": "date"}, "2023-02-28", "whole"),
        ({"format": "date"}, "2023-02-29", "no"),
        ({"format": "date"}, "1900-02-29", "no"),
        ({"format": "date"}, "2023-12-31", "whole"),
        ({"format": "date-time"}, "2023-02-29T12:00:00Z", "no"),
        ({"format": "date-time"}, "2024-02-29T12:00:00Z", "whole"),
        ({"format": "email"}, "a" * 64 + "@b.example", "whole"),
        ({"format": "email"}, "a" * 65 + "@b.example", "no"),
        ({"format": "email"}, "a@" + "b" * 64 + ".example", "no"),
        ({"format": "hostname"}, "a-b.a--b.abc-d.example", "whole"),
        ({"format": "hostname"}, "ab--c.example", "no"),
        ({"format": "hostname"}, "a" * 63 + ".b", "whole"),
        ({"format": "hostname"}, "a." * 126 + "b", "whole"),
        ({"format": "hostname"}, "a." * 127 + "b", "no"),
    ],
)
def test_formats_that_are_narrowed(guides: Guides, fields: dict, text: str, verdict: str) -> None:
    alone = {"type": "string", **fields}
    for schema in (alone, {"oneOf": [alone, {"type": "integer"}]}, {"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": alone}}):
        assert reads(guides, guide.json_schema(schema), f'"{text}"') == verdict


def test_longer_tokens_lead_where_their_bytes_lead() -> None:
    pieces = [b'{"a":{"', b'"]}', b"\\", b'"', b"[[", b"]", b"}", b"{", b'b\\"', b'":[', b"x", b'\\"[', "红[".encode(), b"<|end|>["]
    table = TokenTable(pieces, frozenset({13}), frozenset({13}))
    words, letters = Endless(table, len(pieces)), Endless(TokenTable([bytes([i]) for i in range(256)], frozenset(), frozenset()), 256)
    draw = random.Random(0)
    for _ in range(200):
        place = START
        for token in draw.choices(range(13), k=40):
            deepest, at = place.depth, place
            for byte in pieces[token]:
                at = letters.after(at, byte)
                deepest = max(deepest, at.depth)
            masks = words.barred([], place)
            barred = bool(masks) and bool(masks[0][token])
            assert barred == (deepest > max(MAX_NESTING, place.depth)), (place, pieces[token])
            assert not masks or not masks[0][13]
            place = words.after(place, token)
            if min(place.depth, at.depth) > 0:
                assert place == at
            place = at
    assert words.after(Place(3, 1), 13) == Place(3, 1)


FORMS = [
    guide.json_schema(NODES),
    guide.json_schema({"type": "array", "items": {"type": "number"}}),
    guide.regex("(h(ello)?|[0-9]+) ?w.*"),
    guide.choice(["yes", "红", "hello world"]),
    grammar.HEAD + 'start: <|tool|> "x"',
]


@pytest.mark.parametrize("size", [None, 300, 200])
@pytest.mark.parametrize("form", FORMS)
def test_one_token_is_told_of_as_all_are(form: str, size: int | None) -> None:
    guides, draw = Guides(lambda: TABLE, size), random.Random(0)
    whole, one = guides.guide(form), guides.guide(form)
    tokens: list[int] = []
    for _ in range(120):
        allowed = whole.allowed(tokens)
        assert [one.allows(tokens, token) for token in range(len(allowed))] == allowed.tolist()
        choices = [token for token in np.flatnonzero(allowed).tolist() if token not in ENDS]
        openings = [token for token in choices if token in byte_tokens(b"{[1")]
        if not choices:
            break
        tokens.append(draw.choice(openings if openings and draw.random() < 0.9 else choices))


def test_a_users_word_is_text_and_a_control_token_has_to_be_named(guides: Guides) -> None:
    assert guides.guide(guide.regex("<think>.*")).allowed([])[THINK]
    assert not guides.guide(guide.regex(r"<\|tool\|>")).allowed([])[3]
    named = guides.guide(grammar.HEAD + 'start: <|tool|> "x"')
    assert np.flatnonzero(named.allowed([])).tolist() == [3]
    assert named.complete([3, *byte_tokens(b"x")])


def test_the_answer_depends_on_the_tokens_alone(guides: Guides) -> None:
    form = guide.json_schema({"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"enum": ["x", "xy"]}}} | OPEN)
    texts = [b'{"a": "hello", "b": "x"}', b'{"b": "xy"}', b'{"a": "", "c": [1, 2]}', b"{}"]
    prefixes = [byte_tokens(text[:end]) for text in texts for end in range(len(text) + 1)]
    fresh = {tuple(prefix): guides.guide(form).allowed(prefix).tobytes() for prefix in prefixes}
    at, draw = guides.guide(form), random.Random(0)
    for prefix in draw.choices(prefixes, k=400):
        assert at.allowed(prefix).tobytes() == fresh[tuple(prefix)]
        assert at.complete(prefix) == (bytes(token - 5 for token in prefix) in texts)


def test_a_longer_word_and_its_bytes_lead_to_the_same_place(guides: Guides) -> None:
    at = guides.guide(guide.regex("hello world"))
    words = Tokenizer(toy_vocabulary()).encode("hello world")
    assert len(words) < 11
    assert at.allowed([])[words[0]]
    assert at.complete(words)
    assert at.complete(byte_tokens(b"hello world"))


def test_tokens_that_do_not_follow_are_an_error_that_passes(guides: Guides) -> None:
    at = guides.guide(guide.regex("ab"))
    with pytest.raises(InvalidRequest, match="does not follow"):
        at.allowed(byte_tokens(b"ax"))
    assert np.flatnonzero(at.allowed(byte_tokens(b"a"))).tolist() == byte_tokens(b"b")


@pytest.mark.parametrize("size", [300, 270, 200])
def test_masks_are_as_long_as_the_logits(size: int) -> None:
    at = Guides(lambda: TABLE, size).guide(guide.regex("(?s:.*)"))
    allowed = at.allowed([])
    assert allowed.shape == (size,)
    assert not allowed[len(TABLE.data) :].any()
    assert allowed[: min(size, len(TABLE.data))].sum() > 100


def test_a_character_that_the_model_has_no_token_for_is_an_error() -> None:
    poor = TABLE._replace(data=[b"" if data == b"z" else data for data in TABLE.data])
    guides = Guides(lambda: poor)
    with pytest.raises(InvalidRequest, match="cannot go on"):
        guides.guide(guide.choice(["az"])).allowed(byte_tokens(b"a"))
    with pytest.raises(InvalidRequest, match=r"^f: "):
        guides.check(guide.choice(["z"]), "f")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (partial(guide.choice, []), "choice"),
        (partial(guide.choice, ["a", ""]), "choice[1]"),
        (partial(guide.choice, ["a" * 70_000]), "choice"),
        (partial(guide.choice, ["a", "b\ud800"]), "choice[1]"),
        (partial(guide.regex, "[\ud800]"), "regex"),
        (partial(guide.regex, ""), "regex"),
        (partial(guide.regex, "a" * 70_000), "regex"),
        (partial(guide.regex, "("), "regex"),
        (partial(guide.regex, "(?=a)b"), "regex"),
        (partial(guide.regex, r"(a)\1"), "regex"),
        (partial(guide.regex, "()"), "regex"),
        (partial(guide.lark, "start: missing"), "grammar"),
        (partial(guide.lark, "{{{"), "grammar"),
        (partial(guide.lark, "start: x\nx[temperature=0.5]: /a/"), "grammar"),
        (partial(guide.lark, 'start: x "b"\nx[stop="c"]: /a*/'), "grammar"),
        (partial(guide.lark, 'start: %json {"not": {}}'), "grammar.not"),
        (partial(guide.lark, 'start: %json {"x-guidance": {"lenient": true}}'), "grammar.x-guidance"),
        (partial(guide.lark, "start: %json {"), "grammar"),
        (partial(guide.lark, "a" * 70_000), "grammar"),
        (partial(guide.json_schema, {"allOf": [{"type": "string"}, {"type": "null"}]}), "schema"),
        (partial(guide.json_schema, {"oneOf": [{"type": "number"}, {"type": "integer"}]}), "schema"),
        (partial(guide.json_schema, {"pattern": "(?=a)b"}), "schema"),
        (partial(guide.json_schema, {"pattern": "("}), "schema"),
        (partial(guide.json_schema, {"patternProperties": {"^a": True, "b$": True}}), "schema"),
        (partial(guide.json_schema, False), "schema"),
    ],
)
def test_what_no_grammar_can_be_made_of_is_refused(guides: Guides, make: partial, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        guides.check(make(), field)
    assert refused.value.field == field
    message = str(refused.value)
    assert message.startswith(field)
    assert len(message) < 500
    assert "\n" not in message
    assert 'x-guidance": {' not in message


HOSTILE = {
    "many values": {"enum": [f"value {i}" for i in range(5000)]},
    "many names": {"properties": {f"name{i}": {"type": ["string", "null"], "maxLength": 9} for i in range(900)}},
    "long strings": {"type": "string", "minLength": 10**6, "maxLength": 10**9},
    "long arrays": {"type": "array", "minItems": 10**9},
    "repeats": {"pattern": "^((a{1,100}){1,100}){1,100}$"},
    "words": {"pattern": r"^(\w+\s?){1,1000}$"},
    "unions": {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {"type": "integer"}}} for j in range(6)]} for i in range(9)]},
    "deep": {"$ref": "#/$defs/0", "$defs": {str(i): {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(900)} | {"900": True}},
    "fractions": {"type": "number", "multipleOf": 0.0001, "minimum": 0.5, "maximum": 1e15},
    "multiples": {"type": "integer", "multipleOf": 97},
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_compiled_or_refused_with_bounded_work(guides: Guides, name: str) -> None:
    with suppress(InvalidRequest):
        guides.check(guide.json_schema(HOSTILE[name]))


def test_compiled_grammars_are_kept_within_a_bound(guides: Guides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pitstop.guide.guides.KEPT", 2)
    fresh = Guides(lambda: TABLE)
    forms = [guide.choice([str(i)]) for i in range(4)]
    for form in forms[:3]:
        fresh.check(form)
    fresh.check(forms[1])
    fresh.check(forms[3])
    assert [fresh.known(form) for form in forms] == [False, True, False, True]
    assert reads(fresh, forms[0], "0") == "whole"


def test_the_vocabulary_is_read_once_and_only_when_needed() -> None:
    reads_ = []
    fresh = Guides(lambda: reads_.append(1) or TABLE)
    assert not reads_
    for form in (guide.choice(["a"]), guide.choice(["b"])):
        fresh.check(form)
    assert len(reads_) == 1
