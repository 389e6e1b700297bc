"""A model's words, and all else that the front reads of its file."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from pitstop.engine.protocol import Ready
from pitstop.models.weights import fetch
from pitstop.models.weights.source import ModelSource, open_model
from pitstop.text.template import ChatTemplate
from pitstop.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """What turns words into tokens and back for one model. `digest` is equal for those that agree in every token and template."""

    tokenizer: Tokenizer
    template: ChatTemplate
    digest: str


class Served(NamedTuple):
    """What a request is prepared for: the words and the bounds of the workers that get new requests."""

    texts: Texts
    facts: Ready


class Opened(NamedTuple):
    """context: the model's own, in tokens. stored, wide: bytes of its weights, in the file's precision and in fp32."""

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
    digest = hashlib.sha256(msgspec.json.encode(vocabulary)).hexdigest()
    texts = Texts(tokenizer, ChatTemplate(vocabulary.chat_template, tokenizer), digest)
    return Opened(str(path), texts, source.config.context, *_sizes(source))


def _sizes(source: ModelSource) -> tuple[int, int]:
    stored = wide = 0
    for name, shape in source.config.tensors().items():
        full = 4 * math.prod(shape)
        wide += full
        stored += min(full, source.tensor(name, shape).data.nbytes)
    return stored, wide
