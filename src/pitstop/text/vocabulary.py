"""What a model file says about its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer's data as stored. `types` are GGUF's: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.

    model: the algorithm ("gpt2" is byte-level BPE). pre: name of the pre-tokenizer. merges: "left right", best first.
    bos, eos: token ids or None. add_bos: whether a prompt starts with bos. chat_template: Jinja source or None.
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[str]
    bos: int | None
    eos: int | None
    add_bos: bool
    chat_template: str | None
