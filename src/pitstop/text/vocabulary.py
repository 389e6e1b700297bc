"""A model's vocabulary as its file states it. The readers of model files fill it, `Tokenizer` turns it into a tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class TokenType(IntEnum):
    """Token types as GGUF numbers them (`tokenizer.ggml.token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens` and `types` are indexed by token id and equally long.

    `model` and `pre` name the tokenizer and its pre-tokenizer as GGUF does ("gpt2", "smollm"). `merges` holds "left right" pairs, best
    first, in the spelling of `tokens`; `scores` stand in for them where `model` is "llama" (SentencePiece), and `add_space` says that
    texts begin with a space there; what follows a control token or a user-defined word does, too, unless `space_once`. `definition`,
    where there is one, stands in for `pre` and `merges`: JSON as the tokenizers library reads it, without added tokens and
    post-processing; `model` then says how tokens spell text: "gpt2" byte-level, "llama" and "t5" with ▁ for a space, "bert" with ## where
    a word goes on. `add_bos`: a prompt that no chat template made starts with `bos`. `ends`: ids that end an answer, beside `eos`.
    `before` and `after`: ids around a text that is embedded.
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[str]
    bos: int | None = None
    eos: int | None = None
    add_bos: bool = False
    chat_template: str | None = None
    definition: str = ""
    ends: tuple[int, ...] = ()
    scores: list[float] = field(default_factory=list)
    add_space: bool = False
    space_once: bool = False
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
