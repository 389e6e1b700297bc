"""Objects that name their properties get no others, unless the schema says that they may: a model can invent properties for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

_OPEN = ("additionalProperties", "patternProperties")
_OBJECT = ("properties", "required", "minProperties", "maxProperties", *_OPEN)
_IN_PLACE = ("allOf", "anyOf", "oneOf")


def close(schemas: dict[str, Any]) -> None:
    """schemas: a schema and all within it, by JSON pointer; changed in place. What is valid afterwards was so before.

    A schema that says of the same object what another says, too (allOf, or anyOf and $ref with keywords beside them), stays open: what the
    other names would be forbidden.
    """
    shared: set[str] = set()
    waiting = [at for pointer, schema in schemas.items() if _shares(schema) for at in _in_place(schema, pointer)]
    while waiting:
        pointer = waiting.pop()
        if pointer not in shared:
            shared.add(pointer)
            waiting += _in_place(schemas[pointer], pointer)
    for pointer, schema in schemas.items():
        if pointer not in shared and isinstance(schema, dict) and _can_close(schema):
            schema["additionalProperties"] = False


def _shares(schema: Any) -> bool:
    """Whether more than one part of a schema speaks of the same value as an object."""
    if not isinstance(schema, dict):
        return False
    parts = sum(keyword in schema for keyword in ("anyOf", "oneOf", "$ref")) + any(keyword in schema for keyword in _OBJECT)
    return parts > 1 or "allOf" in schema


def _in_place(schema: Any, pointer: str) -> Iterator[str]:
    """Pointers of the schemas that speak of the same value."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield unquote(schema["$ref"][1:])
        for keyword in _IN_PLACE:
            yield from (f"{pointer}/{keyword}/{i}" for i in range(len(schema.get(keyword, ()))))


def _can_close(schema: dict[str, Any]) -> bool:
    named = schema.get("properties", {})
    if not named or any(keyword in schema for keyword in (*_OPEN, *_IN_PLACE, "$ref")):
        return False
    return set(schema.get("required", ())) <= set(named) and schema.get("minProperties", 0) <= len(named)
