"""The way of a request that generates, common to both routes: read, prepare on a thread, queue, answer."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from pitstop.errors import ContextLengthExceeded, InvalidRequest, PitstopError
from pitstop.pool import Pool, Served, TokenScore
from pitstop.server.body import read_body
from pitstop.server.prepared import Prepared
from pitstop.server.record import Record, record
from pitstop.server.schema import Generation
from pitstop.server.schema.answers import Chunk
from pitstop.server.schema.structured import Formed
from pitstop.server.service import Service, service_of
from pitstop.server.streaming import respond
from pitstop.types import Request, SamplingParams

R = TypeVar("R")

UNLIKELY = -9999.0
"""OpenAI's stand-in for the log-probability of an impossible token: JSON has no -inf."""


Prepare = Callable[[Service, Pool, Served, bytes, float], Prepared]
"""(service, pool, served, body, arrival in monotonic seconds) → the checked request. Runs on a thread; raises PitstopError."""


async def generate(http: HTTPRequest, prepare: Prepare) -> Response:
    """Answer one request."""
    service, arrival = service_of(http), time.monotonic()
    pool = service.ready_pool()
    body = await read_body(http, service.config.max_body)
    with pool.enter() as place:
        about = record()
        about.encoding = time.monotonic()

        def work(served: Served) -> Prepared:
            check_generates(served)
            prepared = prepare(service, pool, served, body, arrival)
            _describe(about, service, served, prepared)
            return prepared

        prepared = await for_served(service, pool, work)
        stream = place.fit(prepared.requests).submit(prepared.requests)
        about.queued = time.monotonic()
    return await respond(http, prepared, stream)


def check_generates(served: Served) -> None:
    """Raise InvalidRequest for a model that has no answers to give."""
    if not served.facts.generates:
        raise InvalidRequest("model: this one embeds texts and does not generate; send them to /v1/embeddings", "model")


async def for_served(service: Service, pool: Pool, work: Callable[[Served], R]) -> R:
    """Do some work on a thread, for what is served now, and once more if another model has taken over meanwhile."""
    while True:
        served = pool.served
        try:
            done = await service.think(work, served)
        except PitstopError:
            if pool.serves(served):
                raise
            continue
        if pool.serves(served):
            return done


def _describe(about: Record, service: Service, served: Served, prepared: Prepared) -> None:
    first = prepared.requests[0]
    about.model, about.params, about.stream = service.name_of(first.adapter), first.params, prepared.stream
    about.answer, about.choices = first.group.partition("/")[0], 1 + max(request.choice for request in prepared.requests)
    prompts = [request.prompt for request in prepared.requests if request.choice == 0]
    about.prompt_tokens = sum(map(len, prompts))
    if service.config.log_prompts:
        about.prompts = [served.texts.tokenizer.decode(prompt) for prompt in prompts]


def new_head(prefix: str, kind: str, model: str) -> Chunk:
    """The fields that all chunks of an answer share."""
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def answer_budget(prompt_tokens: int, wanted: int | None, default: int | None, context: int, field: str) -> int:
    """The answer's longest length in tokens. wanted: what was asked for, None: `default`, and that None: the rest of the context.

    Raises ContextLengthExceeded when prompt and answer do not fit.
    """
    left = context - prompt_tokens
    if wanted is None:
        wanted = max(1, left if default is None else min(default, left))
    if wanted > left:
        raise ContextLengthExceeded(prompt_tokens, wanted, context, field)
    return wanted


def check_tokens(tokens: list[int], vocab_size: int, field: str) -> None:
    """Raise InvalidRequest, naming the item, for a token id outside [0, vocab_size)."""
    for i, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(f"{field}[{i}]: token id {token} is outside the vocabulary of {vocab_size}", f"{field}[{i}]")


def check_places(prompts: int, body: Generation, pool: Pool) -> None:
    """Raise InvalidRequest when one request asks for more answers than the whole queue has places."""
    places = pool.config.max_waiting
    if prompts * body.choices > places:
        field = "prompt" if prompts > 1 else "n"
        raise InvalidRequest(
            f"{field}: {prompts} prompts with {body.choices} answers each are more than the {places} that wait here", field
        )


def form_of(body: Formed, served: Served) -> str:
    """The grammar of the answers, compiled once, "" for none. Raises InvalidRequest."""
    grammar, field = body.form()
    if grammar:
        served.texts.guides.check(grammar, field)
    return grammar


def engine_requests(
    answer_id: str,
    prompts: list[list[int]],
    params: list[SamplingParams],
    body: Generation,
    arrival: float,
    longest: float,
    shown: tuple[int, ...] = (),
    adapter: str = "",
) -> list[Request]:
    """One per choice: the choices of a prompt share a group. longest: the server's limit on a request's time, in seconds.

    shown, adapter: as `Request` has them.
    """
    return [
        Request(
            id=f"{answer_id}-{number * body.choices + choice}",
            prompt=prompt,
            params=params[number],
            choice=choice,
            group=f"{answer_id}/{number}",
            priority=body.priority or 0,
            arrival=arrival,
            deadline=arrival + (body.timeout or longest),
            shown=shown,
            adapter=adapter,
        )
        for number, prompt in enumerate(prompts)
        for choice in range(body.choices)
    ]


def draw_seed() -> int:
    """A seed for a request that has none."""
    return secrets.randbits(63)


def json_logprob(score: TokenScore) -> float:
    return max(score.logprob, UNLIKELY)
