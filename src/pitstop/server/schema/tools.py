"""Functions that a model may call, as request bodies define them, within bounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from pitstop.errors import InvalidRequest
from pitstop.guide.tools import Function
from pitstop.server.schema.base import Body, either

MAX_TOOLS = 128
MAX_TOOLS_SIZE = 1 << 18
"""Characters of all definitions together, as JSON."""

MAX_SCHEMA_DEPTH = 32
"""Nesting of one function's parameters."""

FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Description = Annotated[str, StringConstraints(max_length=1 << 14)]


class FunctionBody(Body):
    """strict: the arguments must follow the schema, which is refused where that cannot be enforced."""

    name: FunctionName
    description: Description | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object; without it the function takes no arguments.")
    strict: bool | None = None

    def function(self) -> Function:
        return Function(self.name, self.description, self.parameters, bool(self.strict))


class Tool(Body):
    type: Literal["function"]
    function: FunctionBody


class FunctionChoiceName(Body):
    name: FunctionName


class FunctionChoice(Body):
    type: Literal["function"]
    function: FunctionChoiceName


def _choice_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "word"
    named = isinstance(value, FunctionChoice) or (isinstance(value, dict) and value.get("type") == "function")
    return "named" if named else None


ToolChoice = either(
    'must be "auto", "none", "required" or {"type": "function", "function": {"name": …}}',
    _choice_kind,
    word=Literal["auto", "none", "required"],
    named=FunctionChoice,
)


def check_functions(functions: Sequence[Function], fields: Sequence[str], schema_field: str) -> None:
    """Raise InvalidRequest unless names are unique, strict functions can be enforced, and all is within bounds.

    fields: of each function; schema_field: of the parameters in it.
    """
    seen = set()
    for function, field in zip(functions, fields, strict=True):
        if function.name in seen:
            raise InvalidRequest(f"{field}.name: two functions are called {function.name!r}", f"{field}.name")
        seen.add(function.name)
        if function.parameters is not None:
            _check_schema(function.parameters, f"{field}.{schema_field}")
        if function.strict:
            function.schema(f"{field}.{schema_field}")
    size = len(json.dumps([function.for_template() for function in functions]))
    if size > MAX_TOOLS_SIZE:
        raise InvalidRequest(f"tools: the definitions have {size} characters, {MAX_TOOLS_SIZE} at most are taken", "tools")


def _check_schema(schema: dict[str, Any], field: str) -> None:
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f'{field}.type: arguments are an object; use "object"', f"{field}.type")
    level: list[Any] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        inner = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
        level = [child for child in inner if isinstance(child, dict | list)]
        if not level:
            return
    raise InvalidRequest(f"{field}: nests more than {MAX_SCHEMA_DEPTH} deep", field)
