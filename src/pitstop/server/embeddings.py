"""POST /v1/embeddings: each text is one request to the engine, of which a few are under way at a time.

So a request of many texts takes no more places in the queue than those few, and others' requests come in between.
"""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from pitstop.engine.protocol import Ready
from pitstop.errors import ConfigError, ContextLengthExceeded, InvalidRequest, PitstopError, Unavailable
from pitstop.models.embedding import Embedding
from pitstop.pool import Pool, Served
from pitstop.pool.door import Place
from pitstop.server.body import parse, read_body
from pitstop.server.generation import check_tokens, for_served
from pitstop.server.record import record
from pitstop.server.schema import EmbeddingRequest
from pitstop.server.service import Service, service_of
from pitstop.server.watch import unless_gone
from pitstop.types import Request, SamplingParams

AT_ONCE = 64
"""Texts of one request that are under way, and a quarter of those that may wait at most: others have requests, too."""


class Wish(NamedTuple):
    """A checked request: one engine request for each text, and how its vectors are finished."""

    served: Served
    requests: list[Request]
    embedding: Embedding
    dimensions: int | None
    base64: bool


async def create_embedding(http: HTTPRequest) -> Response:
    """Embed one or several texts."""
    service, arrival = service_of(http), time.monotonic()
    pool = service.ready_pool()
    body = await read_body(http, service.config.max_body)
    about = record()
    with pool.enter() as place:
        about.encoding = time.monotonic()
        wish = await for_served(service, pool, lambda served: _prepare(service, served, body, arrival))
        model = service.name_of(wish.requests[0].adapter)
        about.model, about.choices = model, len(wish.requests)
        about.prompt_tokens = sum(len(request.prompt) for request in wish.requests)
        if service.config.log_prompts:
            about.prompts = [wish.served.texts.tokenizer.decode(request.prompt) for request in wish.requests]
        window = max(1, min(AT_ONCE, pool.config.max_waiting // 4))
        place.fit(wish.requests[:window])
        about.queued = time.monotonic()
        vectors = await unless_gone(http.receive, _vectors(pool, place, wish, window))
    answer = await service.think(_answer, model, wish, vectors)
    return Response(answer, media_type="application/json")


def embedding_of(service: Service, served: Served) -> Embedding:
    """How the served model embeds. Raises InvalidRequest when nobody has said so."""
    stated, wanted = served.texts.embedding, service.config.pooling
    if wanted:
        return replace(stated, pooling=wanted) if stated is not None else Embedding(wanted)
    if stated is None:
        raise InvalidRequest(
            "model: this one does not say how its hidden states become an embedding; the server has to be started with --pooling mean "
            "or --pooling last",
            "model",
        )
    return stated


def check_pooling(wanted: str, stated: Embedding | None, facts: Ready) -> None:
    """At the start. wanted: --pooling. Raises ConfigError for a way that makes no sense with the model."""
    pooling = wanted or (stated.pooling if stated is not None else "")
    if facts.generates and pooling == "cls":
        raise ConfigError("--pooling cls: a decoder's first token has seen nothing of the text; choose --pooling last or mean")
    if not facts.generates and not pooling:
        raise ConfigError("this encoder does not say how its hidden states become an embedding; choose --pooling mean, cls or last")


def _prepare(service: Service, served: Served, body: bytes, arrival: float) -> Wish:
    """Check everything, tokenise. Raises InvalidRequest or ModelNotFound."""
    wish = parse(body, EmbeddingRequest)
    adapter = service.check_model(wish.model)
    embedding, longest = embedding_of(service, served), service.config.request_timeout
    if wish.timeout is not None and not wish.timeout <= longest:
        raise InvalidRequest(f"timeout must lie in (0, {longest:g}], got {wish.timeout:g}", "timeout")
    _check_dimensions(wish.dimensions, embedding, served.texts.width)
    answer_id, params = f"embd-{uuid.uuid4().hex}", SamplingParams(max_tokens=0)
    requests = [
        Request(
            id=f"{answer_id}-{number}",
            prompt=_tokens(served, text, path),
            params=params,
            priority=wish.priority or 0,
            arrival=arrival,
            deadline=arrival + (wish.timeout or longest),
            embed=embedding.pooling,
            adapter=adapter,
        )
        for number, (path, text) in enumerate(wish.texts())
    ]
    return Wish(served, requests, embedding, wish.dimensions, wish.encoding_format == "base64")


def _check_dimensions(wanted: int | None, embedding: Embedding, width: int) -> None:
    fine = sorted({*embedding.dimensions, width})
    if wanted is not None and wanted not in fine:
        raise InvalidRequest(f"dimensions: this model's vectors have {' or '.join(map(str, fine))} numbers, got {wanted}", "dimensions")


def _tokens(served: Served, text: str | list[int], path: str) -> list[int]:
    """A text's token ids, all that the model gets. Raises InvalidRequest that names `path`."""
    facts = served.facts
    if isinstance(text, str):
        tokens = served.texts.tokenizer.encode_text(text)
    else:
        check_tokens(tokens := text, facts.vocab_size, path)
    if not tokens:
        raise InvalidRequest(f"{path}: has no tokens; send a longer text", path)
    if len(tokens) > facts.context:
        raise ContextLengthExceeded(len(tokens), 0, facts.context, path)
    return tokens


async def _vectors(pool: Pool, place: Place, wish: Wish, window: int) -> list[bytes]:
    """The pooled vectors in the order of the texts, `window` of which are under way at a time: the queue's bounds are for the first."""
    about = record()
    vectors: list[bytes] = [b""] * len(wish.requests)
    left = iter(enumerate(wish.requests))

    async def work() -> None:
        for number, request in left:  # shared: who is free takes the next
            _check_same(pool, wish.served)
            if number >= window:
                request = msgspec.structs.replace(request, arrival=time.monotonic())  # others' texts may be older by now
            with place.submit([request]) as stream:
                async for _, delta in stream:
                    vectors[number] = delta.vector
                    about.cached_tokens += delta.cached_tokens
            about.admitted = about.admitted or stream.admitted

    workers = [asyncio.create_task(work()) for _ in range(min(window, len(wish.requests)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    _check_same(pool, wish.served)
    about.finish.append("stop")
    return vectors


def _check_same(pool: Pool, served: Served) -> None:
    """Raise Unavailable when another model has taken over: an answer's vectors must be comparable."""
    if not pool.serves(served) or pool.facts.weights != served.facts.weights:
        raise Unavailable("The server is being upgraded, and all vectors of an answer must come from one model; ask again.")


def _answer(model: str, wish: Wish, vectors: list[bytes]) -> bytes:
    """JSON. Raises PitstopError for a vector that is not finite."""
    data = []
    for index, vector in enumerate(vectors):
        numbers = wish.embedding.finish(np.frombuffer(vector, "<f4"), wish.dimensions)
        if not np.isfinite(numbers).all():
            raise PitstopError(f"the embedding of input {index} is not finite")
        shown = base64.b64encode(numbers.astype("<f4").tobytes()).decode() if wish.base64 else numbers.tolist()
        data.append({"object": "embedding", "index": index, "embedding": shown})
    tokens = sum(len(request.prompt) for request in wish.requests)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})
