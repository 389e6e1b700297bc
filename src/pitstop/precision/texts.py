"""Texts as token sequences of one length: to train on, to calibrate with, and to measure on what was used for neither."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pitstop.engine.guard_text import CHINESE, CODE, ENGLISH
from pitstop.errors import ConfigError, InvalidRequest
from pitstop.text.template import ChatTemplate
from pitstop.text.tokenizer import Tokenizer
from pitstop.text.vocabulary import Vocabulary

BUILT_IN = "built-in"
"""In the place of a file: the Python language reference, English with code, as every Python ships it for `help`."""
HELD_OUT = 20
"""One token of so many, at the end of a text, is measured on and not used otherwise."""
_SHORTEST = 8


@dataclass(frozen=True, slots=True)
class Windows:
    """Sequences of one length: `used` to train or calibrate, `held_out` to measure on; where they come from."""

    used: list[list[int]]
    held_out: list[list[int]]
    name: str


def read_windows(option: str, file: str, vocabulary: Vocabulary, length: int) -> Windows:
    """The file's text cut into sequences of `length` tokens; its last 1 / HELD_OUT, one sequence at least, is held out.

    file: plain text; or, called *.jsonl, one conversation ({"messages": [{"role", "content"}, …]}) or text ({"text": …}) a line; or
    BUILT_IN. Conversations go through the model's chat template. Where a model's texts begin with a token of their own, so does each
    sequence. Raises ConfigError, naming the option, when it cannot be read or is too short.
    """
    if length < _SHORTEST:
        raise ConfigError(f"--length {length}: choose at least {_SHORTEST} tokens")
    tokenizer = Tokenizer(vocabulary)
    first = tokenizer.encode_prompt("")
    stream = np.fromiter((token for ids in _documents(option, file, vocabulary, tokenizer) for token in ids), np.int64)
    size = length - len(first)
    count = len(stream) // size
    if count < 2:
        raise ConfigError(f"{option} {file}: {len(stream)} tokens, and two sequences of --length {length} are needed; give a longer text")
    windows = [first + list(map(int, stream[i * size : (i + 1) * size])) for i in range(count)]
    held_out = max(1, count // HELD_OUT)
    return Windows(windows[:-held_out], windows[-held_out:], file)


def short_text(vocabulary: Vocabulary, longest: int) -> list[list[int]]:
    """What is measured on where there is no other text: English prose, code and Chinese, some 300 tokens each, a sequence each."""
    tokenizer = Tokenizer(vocabulary)
    return [tokenizer.encode_prompt(text)[:longest] for text in (ENGLISH, CODE, CHINESE)]


def _documents(option: str, file: str, vocabulary: Vocabulary, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Token ids without the first token of a text, each text with the token after it that ends it."""
    text, end = _read(option, file), [] if vocabulary.eos is None else [vocabulary.eos]
    if not file.endswith(".jsonl"):
        yield tokenizer.encode(text) + end
        return
    template = ChatTemplate(vocabulary.chat_template, tokenizer)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield _record(json.loads(line), template, tokenizer, end)
            except (ValueError, LookupError, TypeError) as error:
                raise ConfigError(f'{option} {file}: line {number} has neither "messages" nor "text" ({error!r})') from error
            except InvalidRequest as error:
                raise ConfigError(f"{option} {file}: line {number}: {error}") from error


def _record(record: dict, template: ChatTemplate, tokenizer: Tokenizer, end: list[int]) -> list[int]:
    if "messages" in record:
        return template.render(record["messages"], add_generation_prompt=False)
    return tokenizer.encode(record["text"]) + end


def _read(option: str, file: str) -> str:
    if file == BUILT_IN:
        try:
            from pydoc_data.topics import topics
        except ImportError as error:
            raise ConfigError(f"{option} {BUILT_IN}: this Python comes without the texts of `help`; give a file") from error
        return "\n\n".join(topics.values())
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {file}: cannot be read as text ({error})") from error
