"""The bodies of POST /v1/completions, /tokenize and /detokenize."""

from __future__ import annotations

from pydantic import Field

from pitstop.errors import InvalidRequest
from pitstop.server.schema.base import Body, Int, Texts, only
from pitstop.server.schema.chat import MAX_MESSAGES, Message
from pitstop.server.schema.structured import Formed
from pitstop.types import MAX_LOGPROBS

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(Formed):
    """As OpenAI's, with extensions (marked so).

    max_tokens: 16 by default, less where the context ends before; 0 only with echo, to score a prompt.
    prompt: several prompts give n answers each, those of the first prompt first; all together must fit the queue. What looks like a
    control token in text is text; send token ids for the real ones. "" is the model's BOS token alone, 400 where it has none.
    """

    prompt: Texts
    echo: bool | None = Field(None, description="The prompt comes before the answer; with logprobs, its tokens are scored too.")
    logprobs: Int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="Log-probabilities of the tokens and of so many likeliest ones.")
    suffix: only("") = None
    best_of: Int | None = Field(None, description="Not supported: n is the only value taken.")

    def prompts(self) -> list[str | list[int]]:
        return [self.prompt] if isinstance(self.prompt, str) or isinstance(self.prompt[0], int) else self.prompt

    def path_of(self, index: int) -> str:
        """The field that holds prompt number `index`."""
        return "prompt" if isinstance(self.prompt, str) or isinstance(self.prompt[0], int) else f"prompt[{index}]"

    def wanted_tokens(self) -> int | None:
        """The longest answer asked for, None for the default. Raises InvalidRequest."""
        if self.best_of is not None and self.best_of != self.choices:
            raise InvalidRequest("best_of is not supported; leave it out", "best_of")
        if self.max_tokens is not None and self.max_tokens < (0 if self.echo else 1):
            rule = "at least 0" if self.echo else "at least 1 (0 only with echo: true, to score the prompt)"
            raise InvalidRequest(f"max_tokens must be {rule}, got {self.max_tokens}", "max_tokens")
        return self.max_tokens


class TokenizeRequest(Body):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = Field(None, description="With prompt: BOS where the model was trained so; true by default.")
    add_generation_prompt: bool | None = Field(None, description="With messages: up to where the answer begins; true by default.")


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: list[Int]
