"""What every request body has in common: strict JSON types, no unknown fields, and the parameters of sampling."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from pitstop.errors import InvalidRequest
from pitstop.types import SamplingParams


class Body(BaseModel):
    """A JSON object with exactly the declared fields. Numbers are JSON numbers, never strings or booleans; null equals absent."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _integral(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _bounded(value: int) -> int:
    if abs(value) > 2**64:
        raise PydanticCustomError("range", "is out of any range")
    return value


Int = Annotated[int, BeforeValidator(_integral), AfterValidator(_bounded)]


def only(*allowed: Any, why: str = "is not supported by this server; leave it out") -> Any:
    """The type of a field of OpenAI's that is taken at these values only, which change nothing."""

    def check(value: Any) -> Any:
        if not any(value == fine and type(value) is type(fine) for fine in (None, *allowed)):
            raise PydanticCustomError("unsupported", why)
        return value

    return Annotated[Any, AfterValidator(check), WithJsonSchema({"enum": [*allowed, None]})]


def either(message: str, choose: Any, **kinds: Any) -> Any:
    """A union whose member `choose(value)` names, so that an error speaks about that member only.

    Tags begin with "~": they are no part of a field's path.
    """
    members = [Annotated[kind, Tag(f"~{name}")] for name, kind in kinds.items()]
    union: Any = members[0]
    for member in members[1:]:
        union |= member
    found = Discriminator(
        lambda value: f"~{name}" if (name := choose(value)) else None, custom_error_type="kind", custom_error_message=message
    )
    return Annotated[union, found]


def by_type(kinds: dict[str | None, str]) -> Callable[[Any], str | None]:
    """For `either`: which member an object is, by its "type"."""

    def choose(value: Any) -> str | None:
        kind = value.get("type") if isinstance(value, dict) else ""
        return kinds.get(kind) if isinstance(kind, str | None) else None

    return choose


def text_or_list(value: Any) -> str | None:
    return {str: "text", list: "list"}.get(type(value))


Stop = either("must be a string or a list of strings", text_or_list, text=str, list=list[str])


def text_kind(value: Any) -> str | None:
    """Of one text or several, as strings or token ids.

    A list is judged by its first item, so that an error points at the first item of another kind.
    """
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    return {str: "texts", list: "lists"}.get(type(first), "ids")


TokenIds = Annotated[list[Int], Field(min_length=1)]

Texts = either(
    "must be a string, a list of strings, a list of token ids or a list of such lists",
    text_kind,
    text=str,
    texts=Annotated[list[str], Field(min_length=1)],
    ids=TokenIds,
    lists=Annotated[list[TokenIds], Field(min_length=1)],
)


class StreamOptions(Body):
    """`include_usage`: one more chunk before `[DONE]`, with the usage and no choices."""

    include_usage: bool | None = None
    include_obfuscation: only(False) = None


class Generation(Body):
    """Fields of both ways to generate.

    Ranges are those of `pitstop.types.SamplingParams`; a value outside is 400, and so is a field that is not listed. A request whose time
    is up gets 504, or an error event when its stream has begun.
    """

    model: str = Field(description="The served model's name, as in GET /v1/models; another name is 404.")
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    n: Int | None = Field(None, ge=1, description="Answers per prompt; 1 by default.")
    max_tokens: Int | None = Field(None, description="Longest answer in tokens. Prompt and answer must fit the model's context.")
    temperature: float | None = Field(None, description="1 by default; below 1e-5 the likeliest token is taken.")
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = Field(None, description="Added to the logits: from token id, written as a string, to -100 … 100.")
    seed: Int | None = Field(None, description="64-bit. The same seed gives the same answer; without one, the server draws one.")
    stop: Stop | None = Field(None, description="Strings that end the answer before them; each 1 to 1024 characters, at most 16.")

    top_k: Int | None = Field(None, description="Extension: only the k likeliest tokens; 0 or -1 for all.")
    min_p: float | None = Field(None, description="Extension: only tokens at least this fraction as likely as the likeliest.")
    repetition_penalty: float | None = Field(
        None, description="Extension: divides the logits of tokens seen in prompt or answer; 1 is none."
    )
    stop_token_ids: list[Int] | None = Field(None, max_length=1024, description="Extension: tokens that end the answer, and are not shown.")
    ignore_eos: bool | None = Field(None, description="Extension: the model's own end tokens do not end the answer.")
    min_tokens: Int | None = Field(None, description="Extension: nothing ends the answer before so many tokens.")
    priority: Int | None = Field(None, ge=-1000, le=1000, description="Extension: lower is served earlier; 0 by default.")
    timeout: float | None = Field(None, gt=0, description="Extension: seconds the request may take, at most the server's own limit.")

    user: str | None = Field(None, description="Bookkeeping of the caller's; ignored.")
    metadata: dict[str, str] | None = Field(None, description="Bookkeeping of the caller's; ignored.")
    prompt_cache_key: str | None = Field(None, description="A hint that this server does not need; ignored.")
    prompt_cache_retention: str | None = Field(None, description="A hint that this server does not need; ignored.")
    prompt_cache_options: dict[str, Any] | None = Field(None, description="A hint that this server does not need; ignored.")
    safety_identifier: str | None = Field(None, description="Bookkeeping of the caller's; ignored.")
    store: only(False, why="answers are not stored here; leave it out") = None
    service_tier: only("auto", "default") = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def check_generation(self, max_choices: int, longest: float) -> None:
        """Rules between fields. max_choices: limit on n; longest: limit on timeout in seconds. Raises InvalidRequest."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options: only allowed together with stream: true", "stream_options")
        if self.choices > max_choices:
            raise InvalidRequest(f"n must lie in [1, {max_choices}], got {self.choices}", "n")
        if self.timeout is not None and not self.timeout <= longest:
            raise InvalidRequest(f"timeout must lie in (0, {longest:g}], got {self.timeout:g}", "timeout")

    def sampling(
        self, seed: int, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None = None, grammar: str = ""
    ) -> SamplingParams:
        """`seed` is used when the body has none. Raises InvalidRequest naming the field."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        given = {name: value for name in (*names, "ignore_eos", "min_tokens") if (value := getattr(self, name)) is not None}
        return SamplingParams(
            **given,
            seed=seed if self.seed is None else self.seed,
            logit_bias=_token_keys(self.logit_bias or {}),
            stop=tuple([self.stop] if isinstance(self.stop, str) else self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            grammar=grammar,
        )


def _token_keys(bias: dict[str, float]) -> dict[int, float]:
    for key in bias:
        if not re.fullmatch(r"-?[0-9]{1,15}", key):
            raise InvalidRequest(f'logit_bias: keys are token ids such as "42", got {key[:40]!r}', "logit_bias")
    return {int(key): value for key, value in bias.items()}


Role = Literal["system", "developer", "user", "assistant", "tool"]
