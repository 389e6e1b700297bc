"""JSON schemas, before a grammar is made of one: what a grammar cannot enforce is refused here by its path, never ignored.

Schemas are read as draft 2020-12. Keywords without effect on what is valid are left out, so that they cannot make two grammars of one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from pitstop.errors import InvalidRequest
from pitstop.guide.base_case import has_end
from pitstop.guide.closed import close
from pitstop.guide.formats import NARROWED

Schema = dict[str, Any] | bool

MAX_SCHEMAS = 1000
"""Schemas within a schema, itself included: a grammar of more takes longer to make and to follow than others should wait."""

MAX_DEPTH = 40
MAX_VALUES = 5000
"""Values of all enums."""

MAX_TEXT = 1 << 18
"""Characters of all names, patterns and values."""

MAX_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 7493, section 2.2). Integers without bounds are held within it."""

MAX_MULTIPLE = 10_000
"""Digits of all multipleOf, as one number: the automaton of a multiple has so many states."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
    | {"contentMediaType", "contentEncoding", "contentSchema", "discriminator", "externalDocs"}
)
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_UNSPELLABLE = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")


def checked(schema: Any, field: str = "schema") -> Schema:
    """A copy that has nothing but what a grammar enforces. It is narrower where a model could go on for ever: see `closed`, `formats` and
    MAX_INTEGER.

    Raises InvalidRequest with the path of what is refused, `field` in front: an unknown keyword, type or format, one that cannot be
    enforced, a value that has no finite instance, and what exceeds the limits above.
    """
    checker = _Checker(field)
    copy = checker.copy(schema, field, "", 1)
    checker.check_references()
    if not has_end(checker.seen):
        raise InvalidRequest(f"{field}: refers to itself without a case that ends, so no answer could; give it one", field)
    close(checker.seen)
    return copy


class _Checker:
    """One schema. `seen`: its subschemas (as copied) by JSON pointer, parents first."""

    def __init__(self, field: str) -> None:
        self.seen: dict[str, Schema] = {}
        self._field = field
        self._references: list[tuple[str, str]] = []  # target's pointer, path of the reference
        self._values = 0
        self._text = 0
        self._multiples: set[int] = set()

    def copy(self, schema: Any, path: str, pointer: str, depth: int) -> Schema:
        if not isinstance(schema, dict | bool):
            raise InvalidRequest(f"{path}: a schema is an object or a boolean", path)
        if depth > MAX_DEPTH or len(self.seen) >= MAX_SCHEMAS:
            what = f"nested more than {MAX_DEPTH} deep" if depth > MAX_DEPTH else f"more than {MAX_SCHEMAS} schemas"
            raise InvalidRequest(f"{self._field}: {what}; send a smaller schema", self._field)
        made: Schema = {} if isinstance(schema, dict) else schema
        self.seen[pointer] = made
        for keyword, value in schema.items() if isinstance(schema, dict) else ():
            at = f"{path}.{keyword[:80]}"
            if keyword in _LISTS or keyword in _MAPS or keyword in _SINGLE:
                made[keyword] = self._inner(keyword, value, at, f"{pointer}/{keyword}", depth)
            elif (kept := self._keyword(keyword, value, at, pointer)) is not None:
                made[keyword] = kept[0]
        if isinstance(made, dict):
            self._settle(made, path, pointer)
        return made

    def _inner(self, keyword: str, value: Any, at: str, pointer: str, depth: int) -> Any:
        """The subschemas of a keyword that has them."""
        if keyword in _SINGLE:
            if isinstance(value, list):
                raise InvalidRequest(f"{at}: a list is an old draft's word for prefixItems; write that", at)
            return self.copy(value, at, pointer, depth + 1)
        if keyword in _LISTS:
            if not isinstance(value, list) or not value:
                raise InvalidRequest(f"{at}: a list of at least one schema", at)
            return [self.copy(item, f"{at}[{i}]", f"{pointer}/{i}", depth + 1) for i, item in enumerate(value)]
        if not isinstance(value, dict):
            raise InvalidRequest(f"{at}: an object of schemas", at)
        for name in value:
            self._string(name, at, name=keyword == "properties")
        return {name: self.copy(item, f"{at}.{name[:80]}", f"{pointer}/{_escaped(name)}", depth + 1) for name, item in value.items()}

    def _keyword(self, keyword: str, value: Any, at: str, pointer: str) -> tuple[Any] | None:
        """(The value to keep,), or None for a keyword that has no effect."""
        if keyword in ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance"):
            return None
        if keyword in ("$id", "id") and not pointer:  # references are within the schema, whatever its name
            return None
        if keyword == "uniqueItems" and value is False:
            return None
        rule = _RULES.get(keyword)
        if rule is None:
            raise InvalidRequest(f"{at}: this keyword cannot be enforced here; leave it out", at)
        return (rule(self, value, at),)

    def check_references(self) -> None:
        for target, path in self._references:
            if target not in self.seen:
                raise InvalidRequest(f"{path}: points to no schema of this one", path)

    def _settle(self, made: dict[str, Any], path: str, pointer: str) -> None:
        """Rules between keywords."""
        if made.get("minProperties", 0) > len(set(made.get("required", ()))) + 1:
            at = f"{path}.minProperties"  # of names that nothing declares, two may be equal
            raise InvalidRequest(f"{at}: more than one beyond the required properties cannot be enforced; name them in required", at)
        if (part := NARROWED.get(made.get("format"))) is not None:
            parts = made.setdefault("allOf", [])
            self.seen[f"{pointer}/allOf/{len(parts)}"] = part
            parts.append(part)
        types = made.get("type", ())
        types = {types} if isinstance(types, str) else set(types)
        if "integer" in types and "number" not in types and "enum" not in made and "const" not in made:
            if "minimum" not in made and "exclusiveMinimum" not in made:
                made["minimum"] = -MAX_INTEGER
            if "maximum" not in made and "exclusiveMaximum" not in made:
                made["maximum"] = MAX_INTEGER

    # What each keyword takes. Each gives the value to keep.

    def _types(self, value: Any, at: str) -> Any:
        given = value if isinstance(value, list) else [value]
        for item in given:
            if item not in TYPES or isinstance(item, bool):
                raise InvalidRequest(f"{at}: no such type: {str(item)[:80]!r}; JSON has {', '.join(TYPES)}", at)
        if not given:
            raise InvalidRequest(f"{at}: a list of at least one type", at)
        return value

    def _format(self, value: Any, at: str) -> Any:
        if value not in FORMATS:
            raise InvalidRequest(f"{at}: cannot be enforced; the formats that can are {', '.join(FORMATS)}", at)
        return value

    def _pattern(self, value: Any, at: str) -> Any:
        if not isinstance(value, str):
            raise InvalidRequest(f"{at}: a regular expression", at)
        self._string(value, at)
        return value

    def _required(self, value: Any, at: str) -> Any:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise InvalidRequest(f"{at}: a list of names", at)
        for name in value:
            self._string(name, at, name=True)
        return value

    def _count(self, value: Any, at: str) -> Any:
        if not _is_number(value) or value < 0 or value != int(value) or value > MAX_INTEGER:
            raise InvalidRequest(f"{at}: a whole number, 0 or more", at)
        return int(value)

    def _bound(self, value: Any, at: str) -> Any:
        if not _is_number(value) or abs(value) > MAX_INTEGER:
            raise InvalidRequest(f"{at}: a number within ±(2^53 - 1)", at)
        return value

    def _multiple(self, value: Any, at: str) -> Any:
        self._bound(value, at)
        if value <= 0:
            raise InvalidRequest(f"{at}: a number above 0", at)
        self._multiples.add(int(f"{value:.15e}".partition("e")[0].replace(".", "").rstrip("0")))
        whole = int(value) if value == int(value) else 0
        self._multiples.add(max(whole, 1))
        if math.prod(self._multiples) > MAX_MULTIPLE:
            raise InvalidRequest(f"{at}: too fine to be enforced: its digits, and those of all others, multiply to over {MAX_MULTIPLE}", at)
        return value

    def _reference(self, value: Any, at: str) -> Any:
        if not isinstance(value, str) or not re.match(r"#(/|$)", value):
            raise InvalidRequest(f'{at}: a pointer within this schema, such as "#/$defs/name"', at)
        self._references.append((unquote(value[1:]), at))
        return value

    def _enum(self, value: Any, at: str) -> Any:
        if not isinstance(value, list) or not value:
            raise InvalidRequest(f"{at}: a list of at least one value", at)
        for i, item in enumerate(value):
            self._value(item, f"{at}[{i}]", 1)
        return value

    def _const(self, value: Any, at: str) -> Any:
        self._value(value, at, 1)
        return value

    def _value(self, value: Any, at: str, depth: int) -> None:
        """A value that an answer may have to spell."""
        self._values += 1
        if self._values > MAX_VALUES or depth > MAX_DEPTH:
            raise InvalidRequest(f"{at}: more than {MAX_VALUES} values, or nested more than {MAX_DEPTH} deep; send a smaller schema", at)
        if isinstance(value, str):
            self._string(value, at, name=True)
        elif isinstance(value, list):
            for item in value:
                self._value(item, at, depth + 1)
        elif isinstance(value, dict):
            for name, item in value.items():
                self._string(name, at, name=True)
                self._value(item, at, depth + 1)
        elif not isinstance(value, bool) and value is not None:
            self._bound(value, at)

    def _string(self, text: str, at: str, name: bool = False) -> None:
        """name: an answer may have to spell it."""
        self._text += len(text)
        if self._text > MAX_TEXT:
            raise InvalidRequest(f"{self._field}: more than {MAX_TEXT} characters; send a smaller schema", self._field)
        if name and _UNSPELLABLE.search(text):
            raise InvalidRequest(f"{at}: holds a control character, which no answer can; leave it out", at)


_RULES: dict[str, Callable[[_Checker, Any, str], Any]] = {
    "type": _Checker._types,
    "format": _Checker._format,
    "pattern": _Checker._pattern,
    "required": _Checker._required,
    "multipleOf": _Checker._multiple,
    "$ref": _Checker._reference,
    "enum": _Checker._enum,
    "const": _Checker._const,
    **dict.fromkeys(_COUNTS, _Checker._count),
    **dict.fromkeys(_BOUNDS, _Checker._bound),
}

ENFORCED = frozenset({*_RULES, *_LISTS, *_MAPS, *_SINGLE})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _escaped(name: str) -> str:
    """A name as a JSON pointer writes it (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
