"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from pitstop.guide.tools import Words
from pitstop.pool import Delta, Pool, Served, TokenScore
from pitstop.server.body import parse
from pitstop.server.conversation import converse
from pitstop.server.generation import generate, json_logprob, new_head
from pitstop.server.prepared import Prepared, Shape
from pitstop.server.schema import ChatRequest
from pitstop.server.schema.answers import Chunk
from pitstop.server.service import Service
from pitstop.server.tools import Call, Said, Voice


async def create_chat_completion(http: HTTPRequest) -> Response:
    """Answer a conversation. max_tokens: by default, the rest of the context."""
    return await generate(http, prepare_chat)


def prepare_chat(service: Service, pool: Pool, served: Served, body: bytes, arrival: float) -> Prepared:
    """Check everything, render the template. Raises InvalidRequest or ModelNotFound."""
    chat = parse(body, ChatRequest)
    head = new_head("chatcmpl", "chat.completion.chunk", service.name_of(service.check_model(chat.model)))
    requests, voices = converse(service, pool, served, chat, head["id"], arrival)
    return Prepared(requests, ChatShape(head, chat.include_usage, voices), bool(chat.stream), chat.include_usage)


class ChatShape(Shape):
    """The first chunk of a choice has the role and the first words or call, the last one only the finish reason.

    A call's id and name come once, with its beginning; log-probabilities are those of all tokens, of calls and their marks, too.
    """

    def __init__(self, head: Chunk, usage_field: bool, voices: list[Voice]) -> None:
        """usage_field: chunks have "usage": null, as OpenAI's do when the usage is going to come."""
        self._head = head
        self._usage = {"usage": None} if usage_field else {}
        self._voices = voices
        self._started: set[int] = set()

    def chunks(self, index: int, delta: Delta) -> list[Chunk]:
        voice = self._voices[index]
        parts = list(map(_part, voice.hear(delta)))
        first = index not in self._started
        if not parts and (delta.scores or (first and delta.finish)):
            parts = [{"content": ""}]
        if parts and first:
            self._started.add(index)
            parts[0] = {"role": "assistant", "content": None} | parts[0]
        logprobs = {"content": list(map(_logprob, delta.scores)), "refusal": None} if delta.scores is not None else None
        chunks = [self._chunk(index, part, None if number else logprobs, None) for number, part in enumerate(parts)]
        if delta.finish:
            chunks.append(self._chunk(index, {}, None, voice.reason(delta.finish)))
        return chunks

    def end(self, usage: Chunk) -> list[Chunk]:
        return [{**self._head, "choices": [], "usage": usage}]

    def fold(self, whole: Chunk, chunk: Chunk) -> None:
        if not whole:
            whole |= {**self._head, "object": "chat.completion", "choices": [_empty(index) for index in range(len(self._voices))]}
        for part in chunk["choices"]:
            choice = whole["choices"][part["index"]]
            _fold_message(choice["message"], part["delta"])
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


def _part(said: Said) -> dict:
    match said:
        case Words():
            return {"content": said.text}
        case Call():
            begun = {"index": said.index, "id": said.id, "type": "function", "function": {"name": said.name, "arguments": ""}}
            return {"tool_calls": [begun]}
        case _:
            return {"tool_calls": [{"index": said.index, "function": {"arguments": said.text}}]}


def _empty(index: int) -> dict:
    message = {"role": "assistant", "content": "", "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None}


def _fold_message(message: dict, part: dict) -> None:
    """content: null in an answer that has only calls."""
    if text := part.get("content"):
        message["content"] = (message["content"] or "") + text
    for piece in part.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if "id" in piece:
            message["content"] = message["content"] or None
            calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
        else:
            calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]


def _logprob(score: TokenScore) -> dict:
    return _top_logprob(score) | {"top_logprobs": list(map(_top_logprob, score.top))}


def _top_logprob(score: TokenScore) -> dict:
    return {"token": score.text, "logprob": json_logprob(score), "bytes": list(score.bytes)}
