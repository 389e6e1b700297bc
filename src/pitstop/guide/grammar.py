"""Grammars as strings: a Lark dialect that llguidance reads, with JSON schemas, regular expressions and literals within.

A grammar's first rule is `start`. `%json {…}` within one stands for any JSON text of that schema; write it with `json_text`, which sets how
JSON is spelled. A control token of the model is `<its spelling>` or `<[its id]>`; text in quotes never is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from pitstop.errors import InvalidRequest
from pitstop.guide.schema import Schema, checked

HEAD = '%llguidance {"no_forcing": true}\n'
"""What every grammar begins with, so that none is taken for another notation. No forcing: the model chooses its tokens, also where the
bytes are given; a mask then depends on the bytes so far alone."""

SPELLING = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "json_allowed_escapes": 'nrbtf\\"',
}
"""JSON is written in one line, with at most one space after a comma or colon: what else a model may put there it can repeat for ever. A
character has one spelling, itself where that is allowed: a name that was written another way would be taken for another name."""

MAX_TEXT = 1 << 16
"""Characters of a grammar or regular expression that a user writes, and of all choices."""

_ATTRIBUTES = re.compile(r"^\s*[\w.!?-]+\s*\[([^\]\n]*)\]\s*:", re.MULTILINE)
_IGNORED = re.compile(r"\b(temperature|max_tokens|stop)\b")
_SURROGATES = re.compile("[\ud800-\udfff]")


def json_text(schema: Schema) -> str:
    """The part of a rule that stands for a JSON text of `schema`, which `schema.checked` has seen."""
    schema = schema if isinstance(schema, dict) else {"allOf": [schema]}
    return "%json " + json.dumps({"x-guidance": SPELLING, **schema}, ensure_ascii=False)


def literal(text: str) -> str:
    """The part of a rule that stands for `text`, which is not empty."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one character that JSON has and the notation has not


def of_json(schema: Schema) -> str:
    """Answers are JSON texts of `schema`, which `schema.checked` has seen."""
    return f"{HEAD}start: {json_text(schema)}\n"


def of_object() -> str:
    """Answers are JSON objects."""
    return of_json({"type": "object"})


def of_choice(options: Sequence[str], field: str = "choice") -> str:
    """Answers are one of `options`. Raises InvalidRequest, naming the item, for none, an empty one, or very many."""
    if not options:
        raise InvalidRequest(f"{field}: a list of at least one text", field)
    for i, option in enumerate(options):
        if not option:
            raise InvalidRequest(f"{field}[{i}]: an empty choice is no answer; leave it out", f"{field}[{i}]")
        _of_characters(option, f"{field}[{i}]")
    _bounded("".join(options), field)
    return f"{HEAD}start: {' | '.join(map(literal, options))}\n"


def of_regex(pattern: str, field: str = "regex") -> str:
    """Answers match `pattern` as a whole. \\d and \\w are ASCII's, as in a schema's patterns.

    Raises InvalidRequest for an empty or very long one.
    """
    if not pattern:
        raise InvalidRequest(f"{field}: an empty pattern allows no answer", field)
    return f"{HEAD}start: /{regex_to_lark(_bounded(pattern, field), 'dw')}/\n"


def of_text(text: str, field: str = "grammar") -> str:
    """Answers are derived from a grammar that a user wrote, in llguidance's Lark or in GBNF. Its JSON schemas are checked as others are.

    Raises InvalidRequest for what is not taken; what else is wrong shows when it is compiled.
    """
    try:
        text = any_to_lark(_bounded(text, field))
    except InvalidRequest:
        raise
    except Exception as error:  # the converter raises what it likes
        raise InvalidRequest(f"{field}: neither Lark nor GBNF: {str(error)[:200]}", field) from None
    for match in _ATTRIBUTES.finditer(text):
        if found := _IGNORED.search(match[1]):
            raise InvalidRequest(f"{field}: the rule attribute {found[0]} is not supported; leave it out", field)
    return HEAD + _with_checked_schemas(text, field)


def _with_checked_schemas(text: str, field: str) -> str:
    decoder, parts, end = json.JSONDecoder(), [], 0
    for match in re.finditer(r"%json\s*(?=\{)", text):
        if match.start() < end:  # within a schema
            continue
        try:
            schema, after = decoder.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            raise InvalidRequest(f"{field}: a JSON schema must follow %json, at character {match.start()}", field) from None
        parts += [text[end : match.start()], json_text(checked(schema, field))]
        end = after
    return "".join(parts) + text[end:]


def _bounded(text: str, field: str) -> str:
    if len(text) > MAX_TEXT:
        raise InvalidRequest(f"{field}: {len(text)} characters, {MAX_TEXT} at most are taken", field)
    return _of_characters(text, field)


def _of_characters(text: str, field: str) -> str:
    if _SURROGATES.search(text):
        raise InvalidRequest(f"{field}: holds half of a surrogate pair, which is no character", field)
    return text
