"""Whether a schema has an instance that ends: one that refers to itself needs a case that does not."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from urllib.parse import unquote


def has_end(schemas: dict[str, Any]) -> bool:
    """schemas: a schema and all within it, by JSON pointer. Says of "" whether some finite value is valid as far as references go.

    The least fixed point, found as the productive symbols of a grammar are: a schema is looked at again when one that it needs is found.
    """
    found: set[str] = set()
    users: dict[str, set[str]] = defaultdict(set)
    for pointer, schema in schemas.items():
        if isinstance(schema, dict) and "$ref" in schema:
            users[unquote(schema["$ref"][1:])].add(pointer)
    waiting = list(schemas)
    while waiting:
        pointer = waiting.pop()
        if pointer in found or not _ends(schemas[pointer], pointer, found):
            continue
        found.add(pointer)
        waiting += users[pointer]
        parent = pointer
        while parent:  # the next schema above: keywords and names lie between
            parent = parent.rpartition("/")[0]
            if parent in schemas:
                waiting.append(parent)
                break
    return "" in found


def _ends(schema: Any, at: str, found: set[str]) -> bool:
    """found: pointers of schemas that are known to have an end."""
    if isinstance(schema, bool):
        return True
    if "$ref" in schema and unquote(schema["$ref"][1:]) not in found:
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and not any(f"{at}/{keyword}/{i}" in found for i in range(len(schema[keyword]))):
            return False
    if not all(f"{at}/allOf/{i}" in found for i in range(len(schema.get("allOf", ())))):
        return False
    if "enum" in schema or "const" in schema:
        return True
    types = schema.get("type", "null")
    types = {types} if isinstance(types, str) else set(types)
    if types - {"object", "array"}:
        return True
    return ("object" in types and _object_ends(schema, at, found)) or ("array" in types and _array_ends(schema, at, found))


def _object_ends(schema: dict[str, Any], at: str, found: set[str]) -> bool:
    required, properties = schema.get("required", ()), schema.get("properties", {})
    others = "additionalProperties" not in schema or f"{at}/additionalProperties" in found
    for name in required:
        pointer = f"{at}/properties/{name.replace('~', '~0').replace('/', '~1')}"
        if not (pointer in found if name in properties else others):
            return False
    return others or schema.get("minProperties", 0) <= len(set(required))


def _array_ends(schema: dict[str, Any], at: str, found: set[str]) -> bool:
    least, first = schema.get("minItems", 0), len(schema.get("prefixItems", ()))
    if not all(f"{at}/prefixItems/{i}" in found for i in range(min(least, first))):
        return False
    return least <= first or "items" not in schema or f"{at}/items" in found
