"""Answers of a given form: grammars as strings (`SamplingParams.grammar`), and what one allows next. Imports no torch."""

from __future__ import annotations

from typing import Any

from pitstop.guide.grammar import of_choice as choice
from pitstop.guide.grammar import of_json
from pitstop.guide.grammar import of_object as json_object
from pitstop.guide.grammar import of_regex as regex
from pitstop.guide.grammar import of_text as lark
from pitstop.guide.guides import Guide, Guides
from pitstop.guide.schema import checked

__all__ = ["Guide", "Guides", "checked", "choice", "json_object", "json_schema", "lark", "regex"]


def json_schema(schema: dict[str, Any] | bool, field: str = "schema") -> str:
    """The grammar of JSON texts of a schema. Raises InvalidRequest with the path of what cannot be enforced, `field` in front."""
    return of_json(checked(schema, field))
