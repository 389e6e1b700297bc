"""What is refused of response_format and structured_outputs: at the door, so a server with any worker behind it shows it."""

from __future__ import annotations

import pytest
from servers import Server, refused


def json_schema(schema: object, **fields) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema} | fields}


BAD_FORMATS = {
    "response_format": [
        {},
        "json_object",
        {"type": "yaml"},
        {"type": 1},
        json_schema({"oneOf": [{"type": "number"}, {"type": "integer"}]}) | {"type": "grammar"},
    ],
    "response_format.schema": [{"type": "json_object", "schema": {}}],
    "response_format.json_schema": [{"type": "json_schema"}],
    "response_format.json_schema.name": [json_schema({}, name="a b"), json_schema({}, name=""), json_schema({}, name="x" * 65)],
    "response_format.json_schema.schema": [
        {"type": "json_schema", "json_schema": {"name": "a"}},
        json_schema("object"),
        json_schema({"$ref": "#"}),
        json_schema({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}),
        json_schema({"oneOf": [{"type": "number"}, {"type": "integer"}]}),
        json_schema({"pattern": "("}),
    ],
    "response_format.json_schema.strict": [json_schema({}, strict="yes")],
    "response_format.json_schema.kind": [json_schema({}, kind=1)],
    "response_format.json_schema.schema.type": [json_schema({"type": "banana"})],
    "response_format.json_schema.schema.properties.a.items.not": [json_schema({"properties": {"a": {"items": {"not": True}}}})],
    "response_format.json_schema.schema.properties.a.format": [json_schema({"properties": {"a": {"format": "iri"}}})],
}

BAD_STRUCTURES = {
    "structured_outputs": [{}, {"regex": "a", "choice": ["b"]}, {"json_object": True, "json": {}}],
    "structured_outputs.regex": [{"regex": ""}, {"regex": "("}, {"regex": "(?=a)b"}, {"regex": 1}],
    "structured_outputs.choice": [{"choice": []}, {"choice": "a"}],
    "structured_outputs.choice[1]": [{"choice": ["a", ""]}, {"choice": ["a", 1]}],
    "structured_outputs.grammar": [{"grammar": "start: missing"}, {"grammar": ""}, {"grammar": ["a"]}],
    "structured_outputs.json": [{"json": '{"type": "object"}'}, {"json": {"allOf": [{"type": "null"}, {"type": "string"}]}}],
    "structured_outputs.json.type": [{"json": {"type": "banana"}}],
    "structured_outputs.json_object": [{"json_object": False}],
    "structured_outputs.whitespace_pattern": [{"json": {}, "whitespace_pattern": " "}],
}


def _cases(bad: dict[str, list]) -> list[tuple[str, object]]:
    return [(field, value) for field, values in bad.items() for value in values]


@pytest.mark.parametrize(("field", "value"), _cases(BAD_FORMATS))
def test_case_22_a_response_format_that_cannot_be_kept_is_refused(server: Server, field: str, value: object) -> None:
    refused(server.chat(response_format=value), 400, field)


@pytest.mark.parametrize(("field", "value"), _cases(BAD_STRUCTURES))
def test_case_22_structured_outputs_that_cannot_be_kept_are_refused(server: Server, field: str, value: object) -> None:
    refused(server.chat(structured_outputs=value), 400, field)


def test_case_22_both_routes_refuse_alike(server: Server) -> None:
    for send in (server.chat, server.complete):
        refused(send(response_format=json_schema({"type": "banana"})), 400, "response_format.json_schema.schema.type")
        refused(send(response_format={"type": "json_object"}, structured_outputs={"regex": "a"}), 400, "structured_outputs")
        refused(send(response_format={"type": "json_object"}, ignore_eos=True), 400, "ignore_eos")
        refused(send(structured_outputs={"regex": "a"}, min_tokens=2), 400, "min_tokens")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {str(i): {"type": "string"} for i in range(5000)}},
        {"enum": list(range(20_000))},
        {"type": "integer", "multipleOf": 9_999_991},
        {"allOf": [{"anyOf": [{"properties": {f"{i}.{j}": {"type": "integer"}}} for j in range(6)]} for i in range(9)]},
    ],
)
def test_case_22_hostile_schemas_are_refused_and_the_server_goes_on(server: Server, schema: dict) -> None:
    message = refused(server.chat(response_format=json_schema(schema)), 400)
    assert message.startswith("response_format.json_schema.schema")
    assert server.alive()
