"""POST /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from pitstop.errors import InvalidRequest
from pitstop.pool import Served
from pitstop.server.body import parse, read_body
from pitstop.server.generation import check_tokens, for_served
from pitstop.server.schema import DetokenizeRequest, TokenizeRequest
from pitstop.server.service import Service, service_of
from pitstop.server.tools import turns


async def tokenize(http: HTTPRequest) -> Response:
    """Token ids of a prompt, or of messages through the model's template, as the engine would get them."""
    return await answer(http, _tokenize)


async def detokenize(http: HTTPRequest) -> Response:
    """The text of token ids; bytes that are not UTF-8 become U+FFFD."""
    return await answer(http, _detokenize)


async def answer(http: HTTPRequest, work: Callable[[Service, Served, bytes], dict]) -> Response:
    """What `work` makes of the body, on a thread."""
    service = service_of(http)
    pool = service.ready_pool()
    body = await read_body(http, service.config.max_body)
    with pool.enter():  # a place in the queue: tokenising is work too, and bounded like the rest
        return JSONResponse(await for_served(service, pool, lambda served: work(service, served, body)))


def _tokenize(service: Service, served: Served, body: bytes) -> dict:
    wish = parse(body, TokenizeRequest)
    service.check_model(wish.model)
    if (wish.prompt is None) == (wish.messages is None):
        raise InvalidRequest("send either prompt or messages", "prompt")
    if wish.messages is not None:
        _only_with(wish.add_special_tokens, "add_special_tokens", "prompt")
        messages = turns(wish.messages, served.texts)
        tokens = served.texts.template.render(messages, add_generation_prompt=wish.add_generation_prompt is not False)
    else:
        _only_with(wish.add_generation_prompt, "add_generation_prompt", "messages")
        tokenizer = served.texts.tokenizer
        whole = tokenizer.encode_prompt if served.facts.generates else tokenizer.encode_text
        tokens = tokenizer.encode(wish.prompt) if wish.add_special_tokens is False else whole(wish.prompt)
    return {"tokens": tokens, "count": len(tokens), "max_model_len": served.facts.context}


def _only_with(value: object, field: str, partner: str) -> None:
    if value is not None:
        raise InvalidRequest(f"{field}: only allowed together with {partner}", field)


def _detokenize(service: Service, served: Served, body: bytes) -> dict:
    wish = parse(body, DetokenizeRequest)
    service.check_model(wish.model)
    check_tokens(wish.tokens, served.facts.vocab_size, "tokens")
    return {"prompt": served.texts.tokenizer.decode(wish.tokens)}
