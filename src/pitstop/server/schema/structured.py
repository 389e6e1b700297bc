"""How a request says what form its answer has: OpenAI's response_format, and vLLM's structured_outputs for the rest."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pitstop import guide
from pitstop.errors import InvalidRequest
from pitstop.server.schema.base import Body, Generation, either

MAX_CHOICES = 5000

JsonSchema = either(
    "must be a JSON schema: an object or a boolean",
    lambda value: {dict: "object", bool: "boolean"}.get(type(value)),
    object=dict[str, Any],
    boolean=bool,
)
"""Draft 2020-12; what cannot be enforced is 400."""


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class NamedSchema(Body):
    """`strict` or not, the answer is of the schema; name and description are the caller's own."""

    name: str = Field(pattern="^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    schema_: JsonSchema = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema


def _format_kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if kind in ("text", "json_object", "json_schema") else None


ResponseFormat = either(
    'must be an object with a type: {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": …}',
    _format_kind,
    text=TextFormat,
    json_object=JsonObjectFormat,
    json_schema=JsonSchemaFormat,
)


class StructuredOutputs(Body):
    """Exactly one of these."""

    json_: JsonSchema | None = Field(None, alias="json")
    json_object: Literal[True] | None = None
    regex: str | None = Field(None, description="The whole answer matches it. Rust's syntax: no look-around, no back-references.")
    choice: list[str] | None = Field(None, min_length=1, max_length=MAX_CHOICES, description="The answer is one of them.")
    grammar: str | None = Field(None, description="Lark, as llguidance reads it, or GBNF. The first rule is start (root in GBNF).")


class Formed(Generation):
    """What can have an answer of a given form."""

    response_format: ResponseFormat | None = Field(None, description="The answer is any text, a JSON object, or JSON of a schema.")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="Extension: the answer is of a schema (json), or matches a regex, or is a choice, or is of a grammar."
    )

    def form(self) -> tuple[str, str]:
        """The grammar of the answer and the field that asks for it; "" and "" for none. Raises InvalidRequest."""
        wanted = self.response_format if not isinstance(self.response_format, TextFormat) else None
        other = self.structured_outputs
        if wanted is not None and other is not None:
            raise InvalidRequest("structured_outputs: not together with response_format; send one of them", "structured_outputs")
        if isinstance(wanted, JsonObjectFormat):
            return guide.json_object(), "response_format"
        if isinstance(wanted, JsonSchemaFormat):
            field = "response_format.json_schema.schema"
            return guide.json_schema(wanted.json_schema.schema_, field), field
        return _structured(other) if other is not None else ("", "")


def _structured(wish: StructuredOutputs) -> tuple[str, str]:
    makers = {"json": guide.json_schema, "regex": guide.regex, "choice": guide.choice, "grammar": guide.lark}
    given = {name: value for name in makers if (value := getattr(wish, "json_" if name == "json" else name)) is not None}
    if len(given) + (wish.json_object is not None) != 1:
        rule = "exactly one of json, json_object, regex, choice and grammar"
        raise InvalidRequest(f"structured_outputs: send {rule}", "structured_outputs")
    for name, value in given.items():
        field = f"structured_outputs.{name}"
        return makers[name](value, field), field
    return guide.json_object(), "structured_outputs.json_object"
