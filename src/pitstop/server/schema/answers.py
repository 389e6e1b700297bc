"""The answers as OpenAPI documents them. Routes build plain dictionaries of these shapes; tests compare the two."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

Finish = Literal["stop", "length"]


class ErrorObject(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """OpenAI's error object."""

    error: ErrorObject


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    """A prompt counts once however many answers it gets; an answer's end token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """`token` is "bytes:\\x.." where the bytes are a part of a character; impossible tokens have logprob -9999."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ChatToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(BaseModel):
    """content: null when there are only calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ChatToolCall] | None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatAnswer(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionLogprobs(BaseModel):
    """`text_offset`: where in `text` a token begins, in characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish


class CompletionAnswer(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class EmbeddingItem(BaseModel):
    """embedding: numbers, or with encoding_format base64 their fp32 bytes, little endian. index: of the text among the inputs."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(BaseModel):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None
    parent: str | None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class TokenizeAnswer(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeAnswer(BaseModel):
    prompt: str


class Status(BaseModel):
    status: str


class WorkerHealth(BaseModel):
    worker: int
    life: str
    complaint: str | None
    checked_s: float | None = None
    misses: int | None = None


class Health(BaseModel):
    status: Literal["ok", "failing"]
    reasons: list[str]
    workers: list[WorkerHealth]


class Upgrade(BaseModel):
    """state: none, checking, loading, gating, warming, switching, retiring, done, rolled_back or cancelled. Sizes in bytes."""

    state: str
    reason: str | None = None
    wish: dict[str, Any] | None = None
    workers: dict[str, int] | None = None
    phases: list[dict[str, str | float]] | None = None
    memory: dict[str, int] | None = None
    gate: dict[str, float | None] | None = None
    warmed: dict[str, int] | None = None
    requests_left: int | None = None


class OutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(BaseModel):
    id: str
    type: Literal["message"]
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(BaseModel):
    id: str
    type: Literal["function_call"]
    status: Literal["completed", "incomplete"]
    call_id: str
    name: str
    arguments: str


class ResponsesUsage(BaseModel):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponsesAnswer(BaseModel):
    """What was asked for comes back, with what is assumed for the rest."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete"]
    background: Literal[False]
    error: None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | OutputCall]
    parallel_tool_calls: bool
    previous_response_id: None
    service_tier: str
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponsesUsage


class MessageText(BaseModel):
    type: Literal["text"]
    text: str


class MessageToolUse(BaseModel):
    """input: {"INVALID_JSON": text} for arguments that are no JSON object."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(BaseModel):
    """input_tokens: those that were computed; what was cached is counted for itself."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageText | MessageToolUse]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class CountAnswer(BaseModel):
    input_tokens: int


class AnthropicError(BaseModel):
    type: str
    message: str


class AnthropicErrorAnswer(BaseModel):
    """Anthropic's error object."""

    type: Literal["error"]
    error: AnthropicError
    request_id: str


class Lora(BaseModel):
    """A LoRA adapter. loaded: in seconds since 1970."""

    name: str
    path: str
    digest: str
    rank: int
    bytes: int
    made_for: str | None
    loaded: int


class LoraList(BaseModel):
    object: Literal["list"]
    data: list[Lora]


Chunk = dict[str, Any]
"""One event of a stream, or what they fold into."""
