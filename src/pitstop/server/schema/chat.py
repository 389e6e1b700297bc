"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from pitstop.errors import InvalidRequest
from pitstop.server.schema.base import Body, Int, Role, either, only, text_or_list
from pitstop.server.schema.structured import Formed
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


class Message(Body):
    """One turn. Parts are joined in order with nothing between them. What the template does with `name` is the model's affair."""

    role: Role = Field(description="As the model's template knows them; developer is another word for system.")
    # Before content, so that a turn of calls without content is refused for the calls.
    tool_calls: only([]) = None
    function_call: only() = None
    content: Content
    name: str | None = None
    tool_call_id: str | None = None
    refusal: only() = None
    audio: only() = None
    annotations: only([]) = None

    def for_template(self) -> dict[str, Any]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        message = {"role": "system" if self.role == "developer" else self.role, "content": text}
        return message | {key: value for key in ("name", "tool_call_id") if (value := getattr(self, key)) is not None}


class ChatRequest(Formed):
    """As OpenAI's, with extensions (marked so). What is listed as not supported is taken at the value that changes nothing only.

    max_tokens (or max_completion_tokens, OpenAI's newer name of it): without it the answer may fill the rest of the context.
    """

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: Int | None = None
    logprobs: bool | None = Field(None, description="Log-probabilities of the answer's tokens, from the model's own distribution.")
    top_logprobs: Int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="With logprobs: also those of the likeliest tokens.")

    tools: only([]) = None
    tool_choice: only("none", "auto") = None
    parallel_tool_calls: only(True, False) = None
    functions: only([]) = None
    function_call: only("none", "auto") = None
    modalities: only(["text"]) = None
    audio: only() = None
    prediction: only() = None
    reasoning_effort: only("none") = None
    verbosity: only() = None
    web_search_options: only() = None

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
