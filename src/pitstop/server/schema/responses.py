"""The body of POST /v1/responses, and the chat request that it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from pitstop.server.schema.base import Body, Int, by_type, either, only, text_or_list
from pitstop.server.schema.chat import MAX_MESSAGES, CalledFunction, ChatRequest, Message, ToolCall
from pitstop.server.schema.tools import MAX_TOOLS, Description, FunctionBody, FunctionChoice, FunctionChoiceName, FunctionName, Tool

NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "json_schema": "",
    "tool_call_id": "call_id",
    "function": "",
}
"""What a chat request's fields are called here; "": not at all."""


class Part(Body):
    """A piece of text. What it came with from an earlier answer is ignored."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


def _joined(content: str | Sequence[Part]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


PartContent = either("must be a string or a list of text parts", text_or_list, text=str, list=Annotated[list[Part], Field(min_length=1)])
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class MessageItem(Body):
    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: PartContent
    id: str | None = None
    status: ItemStatus | None = None
    phase: str | None = None


class CallItem(Body):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str = Field(min_length=1, max_length=256)
    name: FunctionName
    arguments: str
    id: str | None = None
    status: ItemStatus | None = None


class OutputItem(Body):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: PartContent
    id: str | None = None
    status: ItemStatus | None = None


Item = either(
    "must be a message, a function_call or a function_call_output",
    by_type({None: "turn", "message": "turn", "function_call": "call", "function_call_output": "output"}),
    turn=MessageItem,
    call=CallItem,
    output=OutputItem,
)

Input = either(
    "must be a string or a list of items", text_or_list, text=str, list=Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]
)


class FunctionTool(Body):
    """strict: the arguments must follow the schema, which is refused where that cannot be enforced."""

    type: Literal["function"]
    name: FunctionName
    description: Description | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object; without it the function takes no arguments.")
    strict: bool | None = None


class NamedChoice(Body):
    type: Literal["function"]
    name: FunctionName


Choice = either(
    'must be "auto", "none", "required" or {"type": "function", "name": …}',
    lambda value: {str: "word", dict: "named"}.get(type(value)),
    word=Literal["auto", "none", "required"],
    named=NamedChoice,
)


class TextConfig(Body):
    """format: as response_format in a chat request, but for the schema's fields, which stand in it."""

    format: dict[str, Any] | None = None
    verbosity: only("medium") = None


class ResponseStreamOptions(Body):
    include_obfuscation: only(False) = None


class ResponsesRequest(Body):
    """As OpenAI's. Nothing is stored: an answer has no life after it was sent, and a conversation is sent whole each time."""

    model: str = Field(description="The served model's name, as in GET /v1/models; another name is 404.")
    input: Input = Field(description="A user's turn, or the conversation: messages, function_call and function_call_output items.")
    instructions: str | None = Field(None, description="A system turn before the input.")
    max_output_tokens: Int | None = Field(None, ge=1, description="By default, the rest of the context.")
    temperature: float | None = Field(None, description="1 by default; below 1e-5 the likeliest token is taken.")
    top_p: float | None = None
    tools: list[FunctionTool] | None = Field(None, max_length=MAX_TOOLS, description="Functions that the model may call.")
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call in an answer.")
    text: TextConfig | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None

    seed: Int | None = Field(None, description="Extension: 64-bit. The same seed gives the same answer.")
    timeout: float | None = Field(None, gt=0, description="Extension: seconds the request may take, at most the server's own limit.")

    user: str | None = Field(None, description="Bookkeeping of the caller's; ignored.")
    metadata: dict[str, str] | None = Field(None, description="Bookkeeping of the caller's; it comes back with the answer.")
    prompt_cache_key: str | None = Field(None, description="A hint that this server does not need; ignored.")
    prompt_cache_retention: str | None = Field(None, description="A hint that this server does not need; ignored.")
    prompt_cache_options: dict[str, Any] | None = Field(None, description="A hint that this server does not need; ignored.")
    safety_identifier: str | None = Field(None, description="Bookkeeping of the caller's; ignored.")
    store: only(False, why="answers are not stored here; leave it out") = None
    previous_response_id: only(why="answers are not stored here; send the whole conversation as input") = None
    conversation: only(why="answers are not stored here; send the whole conversation as input") = None
    background: only(False) = None
    include: only([]) = None
    max_tool_calls: only() = None
    prompt: only() = None
    reasoning: only({}, {"effort": "none"}) = None
    service_tier: only("auto", "default") = None
    top_logprobs: only(0) = None
    truncation: only("disabled") = None

    def chat(self) -> tuple[ChatRequest, list[str]]:
        """The same as a chat request, and the field of each of its messages. Raises InvalidRequest."""
        messages, fields = self._messages()
        choice = self.tool_choice
        tools = [Tool(type="function", function=_function(tool)) for tool in self.tools or ()]
        chat = ChatRequest(
            model=self.model,
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            timeout=self.timeout,
            tools=tools,
            tool_choice=_named(choice.name) if isinstance(choice, NamedChoice) else choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=self._format(),
        )
        return chat, fields

    def _messages(self) -> tuple[list[Message], list[str]]:
        """Calls belong to the assistant's turn before them."""
        turns = [Message(role="system", content=self.instructions)] if self.instructions is not None else []
        fields = ["instructions"] * len(turns)
        if isinstance(self.input, str):
            return [*turns, Message(role="user", content=self.input)], [*fields, "input"]
        for number, item in enumerate(self.input):
            match item:
                case MessageItem():
                    turns.append(Message(role=item.role, content=_joined(item.content)))
                case OutputItem():
                    turns.append(Message(role="tool", tool_call_id=item.call_id, content=_joined(item.output)))
                case CallItem():
                    call = ToolCall(id=item.call_id, function=CalledFunction(name=item.name, arguments=item.arguments))
                    if turns and turns[-1].role == "assistant":
                        turns[-1] = turns[-1].model_copy(update={"tool_calls": [*(turns[-1].tool_calls or ()), call]})
                        continue
                    turns.append(Message(role="assistant", tool_calls=[call]))
            fields.append(f"input[{number}]")
        return turns, fields

    def _format(self) -> dict[str, Any] | None:
        """As response_format of a chat request."""
        format = self.text.format if self.text is not None else None
        if format is None or format.get("type") != "json_schema":
            return format
        return {"type": "json_schema", "json_schema": {name: value for name, value in format.items() if name != "type"}}


def _function(tool: FunctionTool) -> FunctionBody:
    return FunctionBody(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict)


def _named(name: str) -> FunctionChoice:
    return FunctionChoice(type="function", function=FunctionChoiceName(name=name))
