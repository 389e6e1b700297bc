"""What the rooms say to each other: requests, step plans, results, and the KVView and Codec protocols. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from pitstop.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    import torch

    from pitstop.ops.attention.launches import Launches
    from pitstop.ops.attention.triton import Launch

SEGMENT = 128
"""Tokens in a KV segment, and in a page: a page is one segment for every codec."""

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_GRAMMAR = 1 << 20
"""Characters of a grammar."""

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]

Pooling = Literal["last", "mean", "cls"]
"""What of a text's final hidden states (after the last norm) is its embedding: the last token's, the mean of all, the first token's."""

Rotated = Literal["none", "keys", "both"]
"""Which of keys and values a codec keeps in Hadamard's basis."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. Values are checked on creation; `InvalidRequest` names the field.

    Applied in this order: logit_bias, repetition / presence / frequency penalties, min_tokens (bars the end tokens), then greedy when
    `temperature` < 1e-5, else temperature, top_k, top_p, min_p and one draw that depends on (seed, choice, position) only.
    `logprobs` = None: none; k ≥ 0: the chosen token's and the k likeliest tokens' log-probabilities, of the model's own distribution
    (before bias, penalties and temperature). `prompt_logprobs` likewise for every prompt token but the first.
    `grammar`: what the answer is derived from (`pitstop.guide` writes and reads such strings), "": anything. Applied after min_tokens: what
    the grammar does not allow next has no probability. An end token can come only when the answer is complete; when nothing can follow, the
    answer ends by itself. Stop strings and stop_token_ids end it wherever they come.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0 or -1: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int = 0  # the door draws one for a request that has none
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("top_k", self.top_k, -1, 2**31 - 1)
        _in_range("seed", self.seed, -(2**63), 2**63 - 1)
        _in_range("max_tokens", self.max_tokens, 0, 2**31 - 1)
        _in_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        for name in ("logprobs", "prompt_logprobs"):
            if (value := getattr(self, name)) is not None:
                _in_range(name, value, 0, MAX_LOGPROBS)
        for token, bias in self.logit_bias.items():
            _in_range(f"logit_bias[{token}]", bias, -100.0, 100.0)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", "stop")
        for text in self.stop:
            if not 0 < len(text) <= MAX_STOP_LENGTH:
                raise InvalidRequest(f"each stop string has 1 to {MAX_STOP_LENGTH} characters, got {len(text)}", "stop")
        if self.grammar:
            self._check_grammar()

    def _check_grammar(self) -> None:
        """A complete answer that may not end has no way on."""
        if len(self.grammar) > MAX_GRAMMAR:
            raise InvalidRequest(f"the grammar has {len(self.grammar)} characters, {MAX_GRAMMAR} at most are taken", "grammar")
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise InvalidRequest(f"{name}: an answer of a given form ends when it is complete; leave it out", name)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `InvalidRequest` if a token id lies outside [0, vocab_size)."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise InvalidRequest(f"{name}: token id {token} is outside the vocabulary of {vocab_size}", name)


def _in_range(name: str, value: float, low: float, high: float, open_low: bool = False) -> None:
    if not math.isfinite(value) or value > high or value < low or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise InvalidRequest(f"{name} must lie in {bracket}{low:g}, {high:g}], got {value:g}", name)


class TokenTable(NamedTuple):
    """A vocabulary's tokens.

    data: the bytes that each id stands for. control: ids that steer the model and are never text. ends: those that end an answer.
    """

    data: Sequence[bytes]
    control: frozenset[int]
    ends: frozenset[int]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence for the engine: one choice of one user request.

    `group` is shared by the choices of one user request (n > 1): the others wait while the first computes their common prompt.
    `arrival` and `deadline` are in seconds of the host's monotonic clock, which the processes of one host share.
    A lower `priority` is served earlier.
    `emitted`: what a worker that is gone has answered already; the answer goes on after it, and it counts as generated in every respect.
    `probe`: a health check's, not a user's: in no count, and neither served from the prefix cache nor left in it.
    `shown`: control tokens whose spelling is part of the answer's text; the front's affair.
    `score_from`: the logits at the prompt's positions from this one on are wanted themselves, and nothing else; max_tokens must be 0.
    `embed`: the prompt's hidden states are wanted, pooled into one vector, and nothing else; max_tokens must be 0.
    `adapter`: the `id` of the LoRA adapter (config.Adapter) that changes the model for it; "": none.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    choice: int = 0
    group: str = ""
    priority: int = 0
    arrival: float = 0.0
    deadline: float | None = None
    emitted: list[int] = []
    probe: bool = False
    score_from: int | None = None
    shown: tuple[int, ...] = ()
    embed: Pooling | None = None
    adapter: str = ""


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """A token's natural-log probability, and the likeliest tokens with theirs, likeliest first."""

    token: int
    logprob: float
    top: list[tuple[int, float]] = []


class Output(msgspec.Struct, array_like=True):
    """What one step brought for one request. `finish` is set exactly once, on the last."""

    id: str
    tokens: list[int]
    logprobs: list[Logprob] | None = None
    finish: FinishReason | None = None
    cached_tokens: int = 0  # prompt tokens taken from the prefix cache
    prompt_logprobs: list[Logprob] | None = None  # of prompt tokens 1, 2, …, on the first output
    message: str = ""  # why, when finish is "error"
    logits: bytes = b""  # for score_from: [rows, vocab] fp32, little endian
    complete: bool = False  # it stops because its grammar allows nothing more: the last token is text, too
    vector: bytes = b""  # for embed: [width] fp32, little endian, as pooled, with the last output
    refused: bool = False  # the error is the request's own fault


class Piece(NamedTuple):
    """Rows of one request that lie within one segment of its KV.

    The rows' keys and values go to tail slot `tail`; when they fill the segment it is sealed into `pages`: its own page last, before it
    the codec's lead pages if it is the first segment. No pages: it stays open.
    """

    row: int  # first row, counted from the request's first in this step
    count: int  # rows
    start: int  # position of the first row
    tail: int
    pages: tuple[int, ...] = ()

    @property
    def seal(self) -> int:
        """The segment's own page; -1 for one that stays open."""
        return self.pages[-1] if self.pages else -1


@dataclass(slots=True)
class Span:
    """One request's share of a step: its tokens at positions start … start + count - 1.

    `known` are all its tokens so far, prompt first (the scheduler's own list: read it, never keep it). `pages` are its sealed segments'
    in order, lead pages first, those that this step seals included. Logits are wanted for the last `wanted` rows, or the final hidden
    states for a request that embeds. `guess`: tokens that may come after the known ones; the last rows are theirs.
    """

    request: Request
    known: list[int]
    start: int
    count: int
    pages: list[int]
    pieces: list[Piece]
    wanted: int = 0
    guess: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.known[self.start : self.start + self.count] + self.guess

    @property
    def samples(self) -> bool:
        """Whether the step chooses this request's next token."""
        return self.start + self.count - len(self.guess) == len(self.known) and self.request.params.max_tokens > 0

    @property
    def decodes(self) -> bool:
        """Whether it is one certain row, with guessed ones or without, and all logits are wanted."""
        return self.request.embed is None and self.count == self.wanted == 1 + len(self.guess)


@dataclass(slots=True)
class StepPlan:
    """What to run in one step. `copies` (source tail, destination tail) come first, in order.

    `follows`: of a step that is planned while the one before it runs, the rows of that one whose chosen tokens its own rows are.
    `chosen`: these tokens, [rows] int64 on the device: nobody else knows them yet.
    """

    spans: list[Span] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    follows: list[int] = field(default_factory=list)
    chosen: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return sum(span.count for span in self.spans)

    @property
    def decodes(self) -> bool:
        """Whether there is nothing but decoding in it."""
        return all(span.decodes for span in self.spans)


class Sampled(NamedTuple):
    """The tokens chosen after a span, their log-probabilities if wanted, and those of the span's prompt tokens.

    No tokens: not yet at its end. More than one: all but the last had been guessed. logits: for a request that scores, those of the span's
    wanted rows, [rows, vocab] fp32, little endian. complete: the request's grammar allows nothing after the tokens. error: why the request
    cannot go on, by its own fault. hidden: for a request that embeds, the final hidden states of the span's wanted rows, [rows, width]
    fp32.
    """

    tokens: list[int]
    logprobs: list[Logprob] | None = None
    prompt_logprobs: list[Logprob] | None = None
    logits: bytes = b""
    complete: bool = False
    error: str = ""
    hidden: np.ndarray | None = None


StepResult = dict[str, Sampled]
"""By request id, for the spans that wanted logits."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """The KV cache of a model: per token, `2 * layers * kv_heads * head_dim` values."""

    layers: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The arithmetic of one attention layer.

    scale: factor on q·k. softcap: c in c·tanh(s/c), 0 for none. window: how many latest positions a row sees, its own included;
    -1 for all, 0 for none (such a row gives zeros). rope: (cos, sin) tables, each [context, head_dim / 2] fp32, or None.
    interleaved: rotate pairs (2i, 2i+1), else (i, i + head_dim / 2). temperature_length: t, for scores of rows at positions p > t to count
    log p / log t times, 0 for none; cap_first: after the soft cap, else before.
    """

    scale: float
    softcap: float = 0.0
    window: int = -1
    rope: tuple[torch.Tensor, torch.Tensor] | None = None
    interleaved: bool = False
    temperature_length: int = 0
    cap_first: bool = False


class KVView(Protocol):
    """What a model's forward sees of the cache during one step."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        """q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim], all fp32 → [rows, heads, head_dim] fp32.

        Rotates q and k, appends k and v, seals the segments that fill up, and attends.
        """
        ...


class Codec(Protocol):
    """How a sealed segment is stored. A value; adding one adds one file under codecs/.

    A tail is one open segment of one layer: [kv_heads, 2, 128 * head_dim] of `tail_dtype`; index 0 holds the rotated keys transposed
    ([head_dim, 128]), index 1 the values ([128, head_dim]). rotated: what is cached in Hadamard's basis (ops.rope.hadamard), in tails
    too. lead_pages: how many pages a stream's first segment takes beside its own; they come first among the stream's pages.
    """

    name: str
    tail_dtype: torch.dtype
    rotated: Rotated
    lead_pages: int

    def supports(self, shape: KVShape, device: str) -> str | None:
        """Why this codec cannot serve the shape on the device, or None when it can."""
        ...

    def page_bytes(self, shape: KVShape) -> int:
        """Bytes of one page of ONE layer, all metadata included."""
        ...

    def encode(self, tails: torch.Tensor, pages: torch.Tensor, items: torch.Tensor, table: torch.Tensor) -> None:
        """Seal: for each item with a page, encode its tail into the page.

        tails [slots, kv_heads, 2, 128 * head_dim], pages [pages, page_bytes] uint8, items int32 [n, 6] and table int32 [m] as in
        `ops.attention`.
        """
        ...

    def decode(self, lead: torch.Tensor | None, page: torch.Tensor, shape: KVShape) -> tuple[torch.Tensor, torch.Tensor]:
        """Test reference: page [page_bytes] uint8 (of a first segment with its lead page) → keys, values [kv_heads, 128, head_dim] fp32."""
        ...

    def launches(self, shape: KVShape, heads: int, windows: Iterable[int], device: str) -> Launches | None:
        """What `attend` launches for `heads` query heads, made once a step for all layers; None where it needs nothing made."""
        ...

    def attend(
        self,
        q: torch.Tensor,
        tails: torch.Tensor,
        pages: torch.Tensor,
        items: torch.Tensor,
        table: torch.Tensor,
        spec: AttentionSpec,
        launch: Launch | None = None,
    ) -> torch.Tensor:
        """q [rows, heads, head_dim] fp32, rotated → [rows, heads, head_dim] fp32; earlier segments as stored, the own one in 16 bits.

        launch: the step's for this window, where there are `launches`.
        """
        ...
