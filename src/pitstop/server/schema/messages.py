"""The bodies of POST /v1/messages and /v1/messages/count_tokens, Anthropic's, and the chat request that they are."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from pitstop.errors import InvalidRequest
from pitstop.server.schema.base import Body, Int, by_type, either, only, text_or_list
from pitstop.server.schema.chat import MAX_MESSAGES, CalledFunction, ChatRequest, Message, ToolCall
from pitstop.server.schema.tools import (
    MAX_TOOLS,
    Description,
    FunctionBody,
    FunctionChoice,
    FunctionChoiceName,
    FunctionName,
    Tool,
)

NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "function": "",
    "parameters": "input_schema",
    "tool_call_id": "tool_use_id",
    "response_format": "output_config.format",
    "json_schema": "",
}
"""What a chat request's fields are called here; "": not at all."""


class CacheControl(Body):
    """A hint that this server does not need; ignored."""

    type: Literal["ephemeral"]
    ttl: str | None = None


class TextBlock(Body):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: list[Any] | None = None


class ToolUseBlock(Body):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1, max_length=256)
    name: FunctionName
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: dict[str, Any] | None = None
    toolset_name: only() = None


TextBlocks = either("must be a string or a list of text blocks", text_or_list, text=str, list=list[TextBlock])


class ToolResultBlock(Body):
    """What a function returned. is_error: the model reads "Error: " before it."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextBlocks | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: only() = None


Block = either(
    "must be a block of type text, tool_use or tool_result",
    by_type({"text": "text", "tool_use": "use", "tool_result": "result"}),
    text=TextBlock,
    use=ToolUseBlock,
    result=ToolResultBlock,
)


class AnthropicTurn(Body):
    role: Literal["user", "assistant", "system"]
    content: either("must be a string or a list of blocks", text_or_list, text=str, list=Annotated[list[Block], Field(min_length=1)])


class AnthropicTool(Body):
    """strict: the input must follow the schema, which is refused where that cannot be enforced."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: Description | None = None
    input_schema: dict[str, Any] = Field(description="A JSON schema of an object.")
    strict: bool | None = None
    cache_control: CacheControl | None = None


class AnthropicChoice(Body):
    """any: some function; tool: the one of this name."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = Field(None, description="true: at most one call in an answer.")


class JSONFormat(Body):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    format: JSONFormat | None = None
    effort: only() = None


class Metadata(Body):
    user_id: str | None = None


class CountRequest(Body):
    """A prompt as Anthropic's messages API has it: what of a MessagesRequest becomes tokens."""

    model: str = Field(description="The served model's name, as in GET /v1/models; another name is 404.")
    messages: list[AnthropicTurn] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: TextBlocks | None = None
    tools: list[AnthropicTool] | None = Field(None, max_length=MAX_TOOLS, description="Functions that the model may call.")
    tool_choice: AnthropicChoice | None = None
    cache_control: CacheControl | None = None
    output_config: OutputConfig | None = None
    thinking: only({"type": "disabled"}) = None

    def chat(self, **sampling: Any) -> tuple[ChatRequest, list[str]]:
        """The same as a chat request, and the field of each of its messages. Raises InvalidRequest."""
        messages, fields = self._messages()
        choice, format = self.tool_choice, self.output_config.format if self.output_config is not None else None
        chat = ChatRequest(
            model=self.model,
            messages=messages,
            tools=[_tool(tool) for tool in self.tools or ()],
            tool_choice=self._choice(),
            parallel_tool_calls=not (choice is not None and choice.disable_parallel_tool_use),
            response_format=format
            and {"type": "json_schema", "json_schema": {"name": "answer", "schema": format.json_schema, "strict": True}},
            **sampling,
        )
        return chat, fields

    def _choice(self) -> str | FunctionChoice | None:
        choice = self.tool_choice
        if choice is None:
            return None
        if (choice.type == "tool") != (choice.name is not None):
            rule = "is required" if choice.type == "tool" else 'only with type "tool"; leave it out'
            raise InvalidRequest(f"tool_choice.name: {rule}", "tool_choice.name")
        if choice.name is not None:
            return FunctionChoice(type="function", function=FunctionChoiceName(name=choice.name))
        return "required" if choice.type == "any" else choice.type

    def _messages(self) -> tuple[list[Message], list[str]]:
        turns = [Message(role="system", content=_joined(self.system))] if self.system is not None else []
        fields = ["system"] * len(turns)
        if self.messages[-1].role == "assistant":
            raise InvalidRequest("messages: an answer is not continued here; end with a user's turn", "messages")
        for number, turn in enumerate(self.messages):
            made = [Message(role=turn.role, content=turn.content)] if isinstance(turn.content, str) else _split(turn, f"messages[{number}]")
            turns += made
            fields += [f"messages[{number}]"] * len(made)
        return turns, fields


class MessagesRequest(CountRequest):
    """As Anthropic's. The key may come as x-api-key; the version header is not looked at."""

    max_tokens: Int = Field(ge=1, description="Prompt and answer must fit the model's context.")
    stop_sequences: list[str] | None = Field(None, description="Strings that end the answer before them.")
    stream: bool | None = None
    temperature: float | None = Field(None, description="1 by default; below 1e-5 the likeliest token is taken.")
    top_p: float | None = None
    top_k: Int | None = None
    seed: Int | None = Field(None, description="Extension: 64-bit. The same seed gives the same answer.")
    timeout: float | None = Field(None, gt=0, description="Extension: seconds the request may take, at most the server's own limit.")
    metadata: Metadata | None = Field(None, description="Bookkeeping of the caller's; ignored.")
    service_tier: only("auto", "standard_only") = None

    def generation(self) -> tuple[ChatRequest, list[str]]:
        """As `chat`, with how the answer is to be drawn."""
        given = ("temperature", "top_p", "top_k", "seed", "timeout")
        return self.chat(max_tokens=self.max_tokens, stop=self.stop_sequences, **{name: getattr(self, name) for name in given})


def _joined(content: str | list[TextBlock] | None) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content or ())


def _split(turn: AnthropicTurn, field: str) -> list[Message]:
    """A turn of blocks: results first, each a turn of its own; then text, and the calls that go with it."""
    texts = [block.text for block in turn.content if isinstance(block, TextBlock)]
    uses = [block for block in turn.content if isinstance(block, ToolUseBlock)]
    results = [block for block in turn.content if isinstance(block, ToolResultBlock)]
    for blocks, role, kind in ((uses, "assistant", "tool_use"), (results, "user", "tool_result")):
        if blocks and turn.role != role:
            raise InvalidRequest(f"{field}.content: {kind} blocks belong to a turn of the {role}", f"{field}.content")
    made = [Message(role="tool", tool_call_id=block.tool_use_id, content=_result(block)) for block in results]
    if texts or uses:
        calls = [
            ToolCall(id=block.id, function=CalledFunction(name=block.name, arguments=json.dumps(block.input, ensure_ascii=False)))
            for block in uses
        ]
        made.append(Message(role=turn.role, content="".join(texts) if texts else None, tool_calls=calls or None))
    return made


def _result(block: ToolResultBlock) -> str:
    return ("Error: " if block.is_error else "") + _joined(block.content)


def _tool(tool: AnthropicTool) -> Tool:
    function = FunctionBody(name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict)
    return Tool(type="function", function=function)
