"""Grammars as strings: a Lark dialect that llguidance reads, with JSON schemas, regular expressions and literals within.

A grammar's first rule is `start`. `%json {…}` within one stands for any JSON text of that schema; write it with `json_text`, which sets how
JSON is spelled. A control token of the model is `<its spelling>` or `<[its id]>`; text in quotes never is one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

HEAD = "%llguidance {}\n"
"""What every grammar begins with, so that none is taken for another notation."""

SPELLING = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "json_allowed_escapes": 'nrbtf\\"',
}
"""JSON is written in one line, with at most one space after a comma or colon: what else a model may put there it can repeat for ever. A
character has one spelling, itself where that is allowed: a name that was written another way would be taken for another name."""


def json_text(schema: dict[str, Any] | bool) -> str:
    """The part of a rule that stands for a JSON text of `schema`, which `schema.checked` has seen."""
    schema = schema if isinstance(schema, dict) else {"allOf": [schema]}
    return "%json " + json.dumps({"x-guidance": SPELLING, **schema}, ensure_ascii=False)


def literal(text: str) -> str:
    """The part of a rule that stands for `text`, which is not empty."""
    return json.dumps(text, ensure_ascii=False)


def of_json(schema: dict[str, Any] | bool) -> str:
    """Answers are JSON texts of `schema`, which `schema.checked` has seen."""
    return f"{HEAD}start: {json_text(schema)}\n"


def of_object() -> str:
    """Answers are JSON objects."""
    return of_json({"type": "object"})


def of_choice(options: Sequence[str]) -> str:
    """Answers are one of `options`, none of them empty."""
    return f"{HEAD}start: {' | '.join(map(literal, options))}\n"
