"""The guard against a KV codec that does not suit a model: how far it moves the model, measured at load on built-in text and remembered.

Both caches are sealed once, so scoring a prompt gives what decoding it token by token would.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from pitstop import __version__, codecs
from pitstop.config import EngineConfig, cache_dir
from pitstop.engine.guard_text import CHINESE, CODE, ENGLISH, LIMIT
from pitstop.engine.runner import Runner
from pitstop.errors import ConfigError
from pitstop.kv.cache import KVCache
from pitstop.kv.capacity import page_bytes, stream_pages, tail_bytes
from pitstop.kv.store import KVStore
from pitstop.kv.view import StepView
from pitstop.models.decoder import Decoder
from pitstop.models.weights.fetch import identity
from pitstop.models.weights.source import ModelSource
from pitstop.stats import Comparison
from pitstop.text.tokenizer import Tokenizer
from pitstop.types import SEGMENT, Codec, KVShape, Request, SamplingParams, Span, StepPlan

LONGEST = 640
"""Tokens of the text, its three parts alike: five segments, of which four are sealed and read."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Against a 16-bit cache: mean KL divergence in nats, the share of equal likeliest tokens (0 to 1), of how many tokens."""

    mean_kl: float
    same_top: float
    tokens: int

    def __str__(self) -> str:
        return f"mean KL divergence {self.mean_kl:.2g} from 16 bits, {self.same_top:.1%} same top tokens (of {self.tokens})"


def check(config: EngineConfig, source: ModelSource, codec: Codec, shape: KVShape, model: Decoder) -> list[str]:
    """One line for the operator: the loss to expect, a warning when it is over LIMIT. None for a codec that stores what tails hold.

    `config` is resolved. Raises ConfigError over LIMIT when the guard is strict.
    """
    if config.kv.guard == "off" or page_bytes(codec, shape) >= tail_bytes(codec, shape):
        return []
    longest = min(LONGEST, config.kv.context)
    if longest < 2 * SEGMENT:
        return [f"--kv {codec.name}: its loss is not measured, a context of {longest} tokens is too short for that"]
    memory = _memory(config, codec, longest)
    loss = _recall(memory)
    if loss is None:
        loss = measure(model, codec, shape, _text(Tokenizer(source.vocabulary()), longest), config.device)
        _remember(memory, loss)
    if loss.mean_kl <= LIMIT:
        return [f"--kv {codec.name}: {loss}"]
    advice = (
        f"--kv {codec.name} changes this model much: {loss}, where {LIMIT} is the limit; choose a codec of more bits, like int8 or raw16"
    )
    if config.kv.guard == "strict":
        raise ConfigError(f"{advice}, or --kv-guard warn")
    return [f"WARNING: {advice}"]


def measure(model: Decoder, codec: Codec, shape: KVShape, tokens: list[int], device: str) -> Loss:
    """What `codec` changes on a text, over the tokens that read a sealed segment: all but the first 128."""
    comparison = Comparison()
    base = _logits(model, codecs.get("raw16"), shape, tokens, device)
    for expected, found in zip(base, _logits(model, codec, shape, tokens, device), strict=True):
        if not np.isfinite(found).all():
            return Loss(float("inf"), 0.0, len(tokens) - SEGMENT)
        comparison.add(expected, found)
    agreement = comparison.agreement()
    return Loss(agreement.kl_mean, agreement.same_top, agreement.tokens)


def _logits(model: Decoder, codec: Codec, shape: KVShape, tokens: list[int], device: str) -> Iterator[np.ndarray]:
    """Logits [rows, vocab] fp32 of the text's segments, one after the other, from the second on."""
    count = stream_pages(len(tokens), codec.lead_pages)
    store = KVStore(codec, shape, count, 2, device)
    runner = Runner(model, store, StepView(store, SEGMENT, count + 1, device), frozenset())
    cache = KVCache(count, 2, lead_pages=codec.lead_pages, prefix=False)
    request = Request(id="guard", prompt=tokens, params=SamplingParams(max_tokens=0))
    holding = cache.open(tokens, len(tokens))
    for start in range(0, len(tokens), SEGMENT):
        rows = min(SEGMENT, len(tokens) - start)
        pieces = cache.reserve(holding, rows)
        pages = [*holding.pages, *chain.from_iterable(piece.pages for piece in pieces)]
        logits = runner.logits(StepPlan([Span(request, tokens, start, rows, pages, pieces, rows if start else 0)]))
        cache.commit(holding, tokens)
        if start:
            yield logits


def _text(tokenizer: Tokenizer, longest: int) -> list[int]:
    """The built-in text as `longest` tokens at most, a third of each kind."""
    return [token for part in (ENGLISH, CODE, CHINESE) for token in tokenizer.encode(part)[: longest // 3]]


def _memory(config: EngineConfig, codec: Codec, longest: int) -> Path:
    """Where the loss is remembered: a file named after all that it depends on, the codec's own description included."""
    parts = (identity(Path(config.model)), repr(codec), config.activations, longest, LONGEST, ENGLISH, CODE, CHINESE, __version__)
    return cache_dir() / "guard" / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}.json"


def _recall(memory: Path) -> Loss | None:
    try:
        return msgspec.json.decode(memory.read_bytes(), type=Loss)
    except (OSError, msgspec.DecodeError):  # not there, or not readable: it is measured again
        return None


def _remember(memory: Path, loss: Loss) -> None:
    """Whole or not at all; a cache that cannot be written costs the next start a measurement, nothing else."""
    temporary = memory.with_suffix(f".{os.getpid()}.tmp")
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(loss))
        temporary.replace(memory)
