"""The body of POST /v1/chat/completions."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from pitstop.errors import InvalidRequest
from pitstop.guide.tools import Function
from pitstop.server.schema.base import Body, Int, Role, either, only, text_or_list
from pitstop.server.schema.structured import Formed
from pitstop.server.schema.tools import MAX_TOOLS, FunctionName, Tool, ToolChoice, check_functions
from pitstop.types import MAX_LOGPROBS

MAX_MESSAGES = 4096


def _text_part(kind: str) -> str:
    if kind != "text":
        raise PydanticCustomError("part", "this model takes parts of type 'text' only")
    return kind


class TextPart(Body):
    type: Annotated[str, AfterValidator(_text_part), Field(json_schema_extra={"const": "text"})]
    text: str


Content = either("must be a string or a list of text parts", text_or_list, text=str, list=Annotated[list[TextPart], Field(min_length=1)])


def _whole_characters(arguments: str) -> str:
    """Templates get what the JSON stands for, which may hold half a character though its text holds none."""
    try:
        json.dumps(json.loads(arguments), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("surrogate", "holds a lone surrogate, which is no character; send the pair or leave it out") from None
    except (ValueError, RecursionError):
        pass
    return arguments


class CalledFunction(Body):
    """arguments: as the model wrote them; JSON of an object, as a rule."""

    name: FunctionName
    arguments: Annotated[str, AfterValidator(_whole_characters)]


class ToolCall(Body):
    """A call that the model made. index: as the events of a stream have it; ignored."""

    id: str = Field(min_length=1, max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Int | None = None

    def for_template(self) -> dict[str, Any]:
        """Templates write arguments as JSON themselves."""
        try:
            arguments = json.loads(self.function.arguments)
        except (ValueError, RecursionError):
            arguments = None
        arguments = arguments if isinstance(arguments, dict) else self.function.arguments
        return {"id": self.id, "type": "function", "function": {"name": self.function.name, "arguments": arguments}}


class Message(Body):
    """One turn. Parts are joined in order with nothing between them. What the template does with `name` is the model's affair."""

    role: Role = Field(description="As the model's template knows them; developer is another word for system.")
    content: Content | None = Field(None, description="Required, but in an assistant's turn that has tool_calls.")
    tool_calls: list[ToolCall] | None = Field(None, max_length=MAX_TOOLS, description="Of an assistant's turn.")
    tool_call_id: str | None = Field(None, description="Of a tool's turn: which earlier call it answers.")
    name: str | None = None
    function_call: only() = None
    refusal: only() = None
    audio: only() = None
    annotations: only([]) = None

    def for_template(self) -> dict[str, Any]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": text}
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message | {key: value for key in ("name", "tool_call_id") if (value := getattr(self, key)) is not None}


def check_turns(messages: list[Message]) -> None:
    """Rules between fields of turns, and between turns. Raises InvalidRequest."""
    ids: set[str] = set()
    for number, message in enumerate(messages):
        field = f"messages[{number}]"
        if message.tool_calls and message.role != "assistant":
            raise InvalidRequest(f"{field}.tool_calls: only an assistant's turn has calls", f"{field}.tool_calls")
        if message.content is None and not message.tool_calls:
            raise InvalidRequest(f"{field}.content is required", f"{field}.content")
        ids |= {call.id for call in message.tool_calls or ()}
        if (message.role == "tool") != (message.tool_call_id is not None):
            rule = "is required" if message.role == "tool" else "only a tool's turn answers a call; leave it out"
            raise InvalidRequest(f"{field}.tool_call_id: {rule}", f"{field}.tool_call_id")
        if message.tool_call_id is not None and message.tool_call_id not in ids:
            raise InvalidRequest(f"{field}.tool_call_id: no earlier turn has a call of this id", f"{field}.tool_call_id")


class ChatRequest(Formed):
    """As OpenAI's, with extensions (marked so). What is listed as not supported is taken at the value that changes nothing only.

    max_tokens (or max_completion_tokens, OpenAI's newer name of it): without it the answer may fill the rest of the context.
    """

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: Int | None = None
    logprobs: bool | None = Field(None, description="Log-probabilities of the answer's tokens, from the model's own distribution.")
    top_logprobs: Int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="With logprobs: also those of the likeliest tokens.")

    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS, description="Functions that the model may call.")
    tool_choice: ToolChoice | None = Field(None, description="auto by default; required, or a function, is enforced by a grammar.")
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call in an answer.")
    functions: only([]) = None
    function_call: only("none", "auto") = None
    modalities: only(["text"]) = None
    audio: only() = None
    prediction: only() = None
    reasoning_effort: only("none") = None
    verbosity: only() = None
    web_search_options: only() = None

    def defined_functions(self) -> list[Function]:
        """Raises InvalidRequest."""
        functions = [tool.function.function() for tool in self.tools or ()]
        check_functions(functions, [f"tools[{number}].function" for number in range(len(functions))], "parameters")
        return functions

    def wanted_tokens(self) -> int | None:
        """The longest answer asked for, None for the rest of the context. Raises InvalidRequest."""
        names = {name: value for name in ("max_completion_tokens", "max_tokens") if (value := getattr(self, name)) is not None}
        if len(set(names.values())) > 1:
            raise InvalidRequest("max_tokens and max_completion_tokens are two names of one limit; send one of them", "max_tokens")
        for name, value in names.items():
            if value < 1:
                raise InvalidRequest(f"{name} must be at least 1, got {value}", name)
            return value
        return None

    def wanted_logprobs(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs: only allowed together with logprobs: true", "top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None
