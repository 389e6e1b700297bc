"""What is taken of a JSON schema, and what is refused by its path."""

from __future__ import annotations

import pytest

from pitstop.errors import InvalidRequest
from pitstop.guide.schema import MAX_DEPTH, MAX_INTEGER, MAX_SCHEMAS, MAX_TEXT, MAX_VALUES, checked

LIST = {
    "type": "object",
    "properties": {"value": {"type": "string"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["value", "next"],
    "additionalProperties": False,
}


def nested(depth: int) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_what_has_no_effect_is_left_out() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.com/person",
        "title": "Person",
        "type": "object",
        "properties": {"title": {"type": "string", "description": "of honour", "x-order": 1, "default": None}},
        "uniqueItems": False,
    }
    assert checked(schema) == {"type": "object", "properties": {"title": {"type": "string"}}, "additionalProperties": False}
    assert checked(True) is True


def test_properties_keep_their_order() -> None:
    schema = {"properties": dict.fromkeys("zebra", True)}
    assert list(checked(schema)["properties"]) == list("zebra")


def test_integers_without_bounds_are_held_within_what_is_exact() -> None:
    assert checked({"type": "integer"}) == {"type": "integer", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}
    assert checked({"type": "integer", "exclusiveMinimum": 3, "maximum": 5}) == {"type": "integer", "exclusiveMinimum": 3, "maximum": 5}
    assert checked({"type": ["null", "integer"], "maximum": 5}) == {"type": ["null", "integer"], "minimum": -MAX_INTEGER, "maximum": 5}
    assert checked({"type": ["integer", "number"]}) == {"type": ["integer", "number"]}
    assert checked({"type": "integer", "enum": [1]}) == {"type": "integer", "enum": [1]}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"not": {}}}}, "s.properties.a.not"),
        ({"items": {"contains": True}}, "s.items.contains"),
        ({"uniqueItems": True}, "s.uniqueItems"),
        ({"minLenght": 3}, "s.minLenght"),
        ({"x-guidance": {"lenient": True}}, "s.x-guidance"),
        ({"if": True}, "s.if"),
        ({"propertyNames": {"pattern": "a"}}, "s.propertyNames"),
        ({"dependentRequired": {}}, "s.dependentRequired"),
        ({"unevaluatedProperties": False}, "s.unevaluatedProperties"),
        ({"additionalItems": False}, "s.additionalItems"),
        ({"items": [{"type": "string"}]}, "s.items"),
        ({"$dynamicRef": "#a"}, "s.$dynamicRef"),
        ({"items": {"$id": "b"}}, "s.items.$id"),
        ({"nullable": True}, "s.nullable"),
        ({"type": "banana"}, "s.type"),
        ({"type": ["string", "banana"]}, "s.type"),
        ({"type": []}, "s.type"),
        ({"type": {}}, "s.type"),
        ({"format": "int32"}, "s.format"),
        ({"anyOf": [True, {"format": "regex"}]}, "s.anyOf[1].format"),
        ({"format": ["date"]}, "s.format"),
        ({"anyOf": []}, "s.anyOf"),
        ({"anyOf": {}}, "s.anyOf"),
        ({"properties": [1]}, "s.properties"),
        ({"properties": {"a": 1}}, "s.properties.a"),
        ([], "s"),
        (None, "s"),
        ({"required": "a"}, "s.required"),
        ({"required": [1]}, "s.required"),
        ({"pattern": 1}, "s.pattern"),
        ({"minLength": -1}, "s.minLength"),
        ({"minLength": 1.5}, "s.minLength"),
        ({"maxItems": True}, "s.maxItems"),
        ({"maxItems": "2"}, "s.maxItems"),
        ({"maximum": 2**53}, "s.maximum"),
        ({"exclusiveMinimum": True}, "s.exclusiveMinimum"),
        ({"minimum": float("inf")}, "s.minimum"),
        ({"multipleOf": 0}, "s.multipleOf"),
        ({"multipleOf": 99991}, "s.multipleOf"),
        ({"multipleOf": 0.12345}, "s.multipleOf"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "s.allOf[1].multipleOf"),
        ({"enum": []}, "s.enum"),
        ({"enum": {}}, "s.enum"),
        ({"const": 2**60}, "s.const"),
        ({"enum": ["fine", "\x01"]}, "s.enum[1]"),
        ({"const": {"a": ["\x7f"]}}, "s.const"),
        ({"properties": {"\x00": True}}, "s.properties"),
        ({"minProperties": 2}, "s.minProperties"),
        ({"$ref": "http://example.com/a"}, "s.$ref"),
        ({"$ref": "#name"}, "s.$ref"),
        ({"$ref": 1}, "s.$ref"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "s.properties.a.$ref"),
        ({"enum": [{"type": "string"}], "anyOf": [{"$ref": "#/enum/0"}]}, "s.anyOf[0].$ref"),
        (nested(MAX_DEPTH + 1), "s"),
        ({"properties": {str(i): True for i in range(MAX_SCHEMAS)}}, "s"),
        ({"enum": list(range(MAX_VALUES + 1))}, f"s.enum[{MAX_VALUES}]"),
        ({"enum": ["x" * 1000] * (MAX_TEXT // 1000 + 1)}, "s"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_its_path(schema: object, path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked(schema, "s")
    assert refused.value.field == path
    assert str(refused.value).startswith(path)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [True, {"$ref": "#"}], "minItems": 2},
        {"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1},
        {"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["a"]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
        {"allOf": [{"type": "string"}, {"$ref": "#"}]},
        {"type": "object", "properties": {"a/b~c": {"$ref": "#/properties/a~1b~0c"}}, "required": ["a/b~c"]},
    ],
)
def test_a_schema_that_refers_to_itself_without_an_end_is_refused(schema: dict) -> None:
    with pytest.raises(InvalidRequest, match="without a case that ends") as refused:
        checked(schema, "s")
    assert refused.value.field == "s"


@pytest.mark.parametrize(
    "schema",
    [
        LIST,
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"anyOf": [{"$ref": "#"}, {"const": 1}]},
        {"type": "object", "required": ["a"], "properties": {"a": {"const": 1}}, "additionalProperties": {"$ref": "#"}},
        {"properties": {"a/b~c d": {"$ref": "#/$defs/x~1y~0z"}}, "required": ["a/b~c d"], "$defs": {"x/y~z": {"type": "string"}}},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": True}},
        {"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(400)} | {"400": {"type": "null"}}},
    ],
)
def test_a_schema_that_refers_to_itself_with_an_end_is_taken(schema: dict) -> None:
    assert checked(schema)


A, B = {"properties": {"a": True}}, {"properties": {"b": True}}
CLOSED = {"properties": {"a": True}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        (A, CLOSED),
        ({"items": A}, {"items": CLOSED}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"$ref": "#/$defs/a", "$defs": {"a": A}}, {"$ref": "#/$defs/a", "$defs": {"a": CLOSED}}),
    ],
)
def test_objects_that_name_their_properties_are_closed(schema: dict, made: dict) -> None:
    assert checked(schema) == made


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {}},
        A | {"additionalProperties": True},
        A | {"additionalProperties": {"type": "null"}},
        A | {"patternProperties": {"^x": True}},
        A | {"required": ["b"]},
        A | {"minProperties": 2, "required": ["a"]},
        {"allOf": [A, B]},
        A | {"anyOf": [B, {"required": ["c"]}]},
        {"anyOf": [{"allOf": [A]}, True]},
        B | {"$ref": "#/$defs/a", "$defs": {"a": A}},
        {"anyOf": [A], "oneOf": [B]},
        {"allOf": [{"$ref": "#/$defs/a"}, {"anyOf": [B]}], "$defs": {"a": A}, "items": {"$ref": "#/$defs/a"}},
        B | {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"oneOf": [A]}}},
    ],
)
def test_objects_that_others_speak_of_and_open_ones_are_not(schema: dict) -> None:
    assert checked(schema) == schema
