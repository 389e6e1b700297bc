"""A model's words, and all else that the front reads of its file."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from pitstop.engine.protocol import Ready
from pitstop.guide import Guides
from pitstop.models.embedding import Embedding
from pitstop.models.weights import fetch
from pitstop.models.weights.source import open_model
from pitstop.text.template import ChatTemplate
from pitstop.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """What turns words into tokens and back for one model, and what answers of a given form are checked with.

    `digest` is equal for those that agree in all of it. embedding: how the model's files say that it embeds, if they do. width: of its
    hidden states.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    digest: str
    embedding: Embedding | None = None
    width: int = 0
    guides: Guides = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "guides", Guides(lambda: self.tokenizer.table))


class Served(NamedTuple):
    """What a request is prepared for: the words and the bounds of the workers that get new requests."""

    texts: Texts
    facts: Ready


class Opened(NamedTuple):
    """context: the model's own, in tokens. stored, wide: bytes of its weights, as they lie in files and in fp32."""

    path: str
    texts: Texts
    context: int
    stored: int
    wide: int


def read_model(name_or_path: str) -> Opened:
    """A name is fetched if it is not here. Raises ConfigError, DownloadFailed, WeightsError or Unsupported."""
    source = open_model(path := fetch.pull(name_or_path))
    vocabulary = source.vocabulary()
    tokenizer = Tokenizer(vocabulary)
    embedding, width = source.embedding(), source.config.width
    digest = hashlib.sha256(msgspec.json.encode((vocabulary, embedding, width))).hexdigest()
    texts = Texts(tokenizer, ChatTemplate(vocabulary.chat_template, tokenizer), digest, embedding, width)
    wide = 4 * sum(map(math.prod, source.config.tensors().values()))
    return Opened(str(path), texts, source.config.context, _bytes(path), wide)


def _bytes(path: Path) -> int:
    """Of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
