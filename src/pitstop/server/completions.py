"""POST /v1/completions."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from pitstop.errors import InvalidRequest
from pitstop.pool import Delta, Pool, Served, TokenScore
from pitstop.pool.decoding import spell
from pitstop.server.body import parse
from pitstop.server.generation import (
    answer_budget,
    check_places,
    check_tokens,
    draw_seed,
    engine_requests,
    form_of,
    generate,
    json_logprob,
    new_head,
)
from pitstop.server.prepared import Prepared, Shape
from pitstop.server.schema import CompletionRequest
from pitstop.server.schema.answers import Chunk
from pitstop.server.schema.completions import DEFAULT_MAX_TOKENS
from pitstop.server.service import Service
from pitstop.text.tokenizer import Tokenizer


async def create_completion(http: HTTPRequest) -> Response:
    """Continue one or several prompts. max_tokens: 16 by default."""
    return await generate(http, prepare_completion)


def prepare_completion(service: Service, pool: Pool, served: Served, body: bytes, arrival: float) -> Prepared:
    """Check everything, tokenise. Raises InvalidRequest or ModelNotFound."""
    wish = parse(body, CompletionRequest)
    adapter = service.check_model(wish.model)
    longest = service.config.request_timeout
    wish.check_generation(service.config.max_choices, longest)
    wanted, given = wish.wanted_tokens(), wish.prompts()
    check_places(len(given), wish, pool)
    tokenizer, facts = served.texts.tokenizer, served.facts
    prompts, params, voices = [], [], []
    grammar = form_of(wish, served)
    for number, prompt in enumerate(given):
        path = wish.path_of(number)
        tokens = prompt_tokens(tokenizer, prompt, facts.vocab_size, path)
        max_tokens = answer_budget(len(tokens), wanted, DEFAULT_MAX_TOKENS, facts.context, path)
        sampling = wish.sampling(draw_seed(), max_tokens, wish.logprobs, wish.logprobs if wish.echo else None, grammar)
        sampling.check_vocabulary(facts.vocab_size)
        prompts.append(tokens)
        params.append(sampling)
        voices += [_Voice.of(tokenizer, prompt, tokens) if wish.echo else _Voice() for _ in range(wish.choices)]
    head = new_head("cmpl", "text_completion", service.name_of(adapter))
    requests = engine_requests(head["id"], prompts, params, wish, arrival, longest, adapter=adapter)
    return Prepared(requests, CompletionShape(head, wish.include_usage, voices), bool(wish.stream), wish.include_usage)


def prompt_tokens(tokenizer: Tokenizer, prompt: str | list[int], vocab_size: int, path: str) -> list[int]:
    """A prompt's token ids. Raises InvalidRequest that names `path`."""
    if not isinstance(prompt, str):
        check_tokens(prompt, vocab_size, path)
        return prompt
    if tokens := tokenizer.encode_prompt(prompt):
        return tokens
    if prompt or tokenizer.bos is None:
        raise InvalidRequest(f"{path}: has no tokens; send a longer one", path)
    return [tokenizer.bos]


@dataclass(slots=True)
class _Voice:
    """The state of one choice. echo: the prompt's text; first: its first token, which no log-probability predicts; None without echo.

    outside: the prompt begins with a BOS that is not in its text.
    """

    echo: str = ""
    first: TokenScore | None = None
    outside: bool = False
    started: bool = False
    length: int = 0  # of the text so far, in characters
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    @classmethod
    def of(cls, tokenizer: Tokenizer, prompt: str | list[int], tokens: list[int]) -> _Voice:
        first = spell(tokenizer, tokens[0], 0.0)
        if not isinstance(prompt, str):
            return cls(tokenizer.decode(tokens), first)
        bos_in_front = tokens[0] == tokenizer.bos and not prompt.startswith(first.text)
        return cls(prompt, first, bos_in_front)

    def offset(self, data: bytes) -> int:
        """Where a token begins in the text; then go on past it."""
        start = self.length
        self.length += len(self.decoder.decode(data))
        return start


class CompletionShape(Shape):
    """Chunks have the text of a delta; the finish reason comes with the last text."""

    def __init__(self, head: Chunk, usage_field: bool, voices: list[_Voice]) -> None:
        self._head = head
        self._usage = {"usage": None} if usage_field else {}
        self._voices = voices

    def chunks(self, index: int, delta: Delta) -> list[Chunk]:
        voice, text = self._voices[index], delta.text
        logprobs = None
        if delta.scores is not None or delta.prompt_scores is not None:
            logprobs = _new_logprobs()
            if delta.prompt_scores is not None:
                self._add_prompt(logprobs, voice, delta.prompt_scores)
            _add(logprobs, voice, delta.scores or [])
        if not voice.started:
            text = voice.echo + text
            voice.started = True
        if not (text or delta.finish or (logprobs and logprobs["tokens"])):
            return []
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": delta.finish}
        return [{**self._head, "choices": [choice], **self._usage}]

    def end(self, usage: Chunk) -> list[Chunk]:
        return [{**self._head, "choices": [], "usage": usage}]

    def fold(self, whole: Chunk, chunk: Chunk) -> None:
        if not whole:
            whole |= {**self._head, "choices": []}
            for index in range(len(self._voices)):
                whole["choices"].append({"index": index, "text": "", "logprobs": None, "finish_reason": None})
        for part in chunk["choices"]:
            choice = whole["choices"][part["index"]]
            choice["text"] += part["text"]
            if part["logprobs"] is not None:
                if choice["logprobs"] is None:
                    choice["logprobs"] = _new_logprobs()
                for key, values in part["logprobs"].items():
                    choice["logprobs"][key] += values
            choice["finish_reason"] = part["finish_reason"]
        if chunk.get("usage"):
            whole["usage"] = chunk["usage"]

    @staticmethod
    def _add_prompt(logprobs: dict, voice: _Voice, scores: list[TokenScore]) -> None:
        """The prompt's tokens, the first without a log-probability."""
        logprobs["tokens"].append(voice.first.text)
        logprobs["token_logprobs"].append(None)
        logprobs["top_logprobs"].append(None)
        logprobs["text_offset"].append(0 if voice.outside else voice.offset(voice.first.bytes))
        _add(logprobs, voice, scores)


def _new_logprobs() -> dict:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _add(logprobs: dict, voice: _Voice, scores: Iterable[TokenScore]) -> None:
    """The chosen token is always among the top ones, as OpenAI has it; of tokens that read alike the likelier one counts."""
    for score in scores:
        top = {}
        for candidate in (*score.top, score):
            top.setdefault(candidate.text, json_logprob(candidate))
        logprobs["tokens"].append(score.text)
        logprobs["token_logprobs"].append(json_logprob(score))
        logprobs["top_logprobs"].append(top)
        logprobs["text_offset"].append(voice.offset(score.bytes))
