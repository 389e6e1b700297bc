"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from pitstop.errors import InvalidRequest
from pitstop.pool import Delta, Pool, Served, TokenScore
from pitstop.server.body import parse
from pitstop.server.generation import answer_budget, check_places, draw_seed, engine_requests, form_of, generate, json_logprob, new_head
from pitstop.server.prepared import Prepared
from pitstop.server.schema import ChatRequest
from pitstop.server.schema.answers import Chunk
from pitstop.server.service import Service


async def create_chat_completion(http: HTTPRequest) -> Response:
    """Answer a conversation. max_tokens: by default, the rest of the context."""
    return await generate(http, prepare_chat)


def prepare_chat(service: Service, pool: Pool, served: Served, body: bytes, arrival: float) -> Prepared:
    """Check everything, render the template. Raises InvalidRequest or ModelNotFound."""
    chat = parse(body, ChatRequest)
    service.check_model(chat.model)
    longest = service.config.request_timeout
    chat.check_generation(service.config.max_choices, longest)
    check_places(1, chat, pool)
    wanted, logprobs = chat.wanted_tokens(), chat.wanted_logprobs()
    prompt = served.texts.template.render([message.for_template() for message in chat.messages])
    if not prompt:
        raise InvalidRequest("the model's template makes an empty prompt of these messages", "messages")
    max_tokens = answer_budget(len(prompt), wanted, None, served.facts.context, "messages")
    params = chat.sampling(draw_seed(), max_tokens, logprobs, grammar=form_of(chat, served))
    params.check_vocabulary(served.facts.vocab_size)
    head = new_head("chatcmpl", "chat.completion.chunk", service.config.model_name)
    requests = engine_requests(head["id"], [prompt], [params], chat, arrival, longest)
    return Prepared(requests, ChatShape(head, chat.include_usage, chat.choices), bool(chat.stream), chat.include_usage)


class ChatShape:
    """The first chunk of a choice has the role and the first words, the last one only the finish reason."""

    def __init__(self, head: Chunk, usage_field: bool, choices: int) -> None:
        """usage_field: chunks have "usage": null, as OpenAI's do when the usage is going to come."""
        self._head = head
        self._usage = {"usage": None} if usage_field else {}
        self._choices = choices
        self._started: set[int] = set()

    def chunks(self, index: int, delta: Delta) -> list[Chunk]:
        chunks = []
        first = index not in self._started
        if delta.text or delta.scores or (first and delta.finish):
            self._started.add(index)
            words = {"role": "assistant", "content": delta.text} if first else {"content": delta.text}
            logprobs = {"content": list(map(_logprob, delta.scores)), "refusal": None} if delta.scores is not None else None
            chunks.append(self._chunk(index, words, logprobs, None))
        if delta.finish:
            chunks.append(self._chunk(index, {}, None, delta.finish))
        return chunks

    def usage_chunk(self, usage: dict) -> Chunk:
        return {**self._head, "choices": [], "usage": usage}

    def fold(self, whole: Chunk, chunk: Chunk) -> None:
        if not whole:
            whole |= {**self._head, "object": "chat.completion", "choices": [_empty(index) for index in range(self._choices)]}
        for part in chunk["choices"]:
            choice = whole["choices"][part["index"]]
            choice["message"]["content"] += part["delta"].get("content", "")
            if part["logprobs"] is not None:
                if choice["logprobs"] is None:
                    choice["logprobs"] = {"content": [], "refusal": None}
                choice["logprobs"]["content"] += part["logprobs"]["content"]
            choice["finish_reason"] = part["finish_reason"]
        if chunk.get("usage"):
            whole["usage"] = chunk["usage"]

    def _chunk(self, index: int, words: dict, logprobs: dict | None, finish: str | None) -> Chunk:
        choice = {"index": index, "delta": words, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head, "choices": [choice], **self._usage}


def _empty(index: int) -> dict:
    message = {"role": "assistant", "content": "", "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None}


def _logprob(score: TokenScore) -> dict:
    return _top_logprob(score) | {"top_logprobs": list(map(_top_logprob, score.top))}


def _top_logprob(score: TokenScore) -> dict:
    return {"token": score.text, "logprob": json_logprob(score), "bytes": list(score.bytes)}
