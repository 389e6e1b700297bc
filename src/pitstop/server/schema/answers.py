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


class ChatMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


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


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None


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


Chunk = dict[str, Any]
"""One event of a stream, or what they fold into."""
