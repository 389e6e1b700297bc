"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from pitstop.guide.tools import Words
from pitstop.pool import Delta, Pool, Served
from pitstop.server.body import parse
from pitstop.server.conversation import converse, in_words_of
from pitstop.server.errors import anthropic
from pitstop.server.generation import generate
from pitstop.server.prepared import Prepared, Shape
from pitstop.server.schema.answers import Chunk
from pitstop.server.schema.messages import NAMES, CountRequest, MessagesRequest
from pitstop.server.service import Service
from pitstop.server.tokens import answer
from pitstop.server.tools import Call, Said, Voice, render

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


async def create_message(http: HTTPRequest) -> Response:
    """Answer a conversation, as Anthropic's API has it."""
    return await generate(http, prepare_message)


async def count_tokens(http: HTTPRequest) -> Response:
    """How many tokens a prompt has, as POST /v1/messages would make it."""
    return await answer(http, _count)


def _count(service: Service, served: Served, body: bytes) -> dict:
    wish = parse(body, CountRequest)
    service.check_model(wish.model)
    with in_words_of(NAMES):
        chat, turns = wish.chat()
    with in_words_of(NAMES, turns):
        prompt, _ = render(chat, served.texts)
    return {"input_tokens": len(prompt)}


def prepare_message(service: Service, pool: Pool, served: Served, body: bytes, arrival: float) -> Prepared:
    """Check everything, render the template. Raises InvalidRequest or ModelNotFound."""
    wish = parse(body, MessagesRequest)
    answer_id = f"msg_{uuid.uuid4().hex}"
    with in_words_of(NAMES):
        chat, turns = wish.generation()
    with in_words_of(NAMES, turns):
        requests, voices = converse(service, pool, served, chat, answer_id, arrival)
    shape = MessageShape(answer_id, service.name_of(requests[0].adapter), len(requests[0].prompt), voices[0])
    return Prepared(requests, shape, bool(wish.stream), True)


class MessageShape(Shape):
    """Events that open, fill and close one content block after another."""

    typed = True
    last = b""

    def __init__(self, answer_id: str, model: str, prompt_tokens: int, voice: Voice) -> None:
        self._message = {
            "id": answer_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        self._prompt_tokens = prompt_tokens
        self._voice = voice
        self._begun = False
        self._blocks = 0
        self._open: str | None = None  # the type of the block that is open, the last one
        self._ended: Chunk = {}

    def chunks(self, index: int, delta: Delta) -> list[Chunk]:
        events = []
        if not self._begun:
            self._begun = True
            usage = _usage(self._prompt_tokens, delta.cached_tokens, 0)
            events.append({"type": "message_start", "message": self._message | {"usage": usage}})
        for said in self._voice.hear(delta):
            events += self._say(said)
        if delta.finish:
            events += self._close()
            reason = "stop_sequence" if delta.stop is not None else _REASONS.get(self._voice.reason(delta.finish), "end_turn")
            self._ended = {"stop_reason": reason, "stop_sequence": delta.stop}
        return events

    def end(self, usage: Chunk) -> list[Chunk]:
        counts = _usage(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])
        return [{"type": "message_delta", "delta": self._ended, "usage": counts}, {"type": "message_stop"}]

    def failure(self, status: int, error: Chunk) -> Chunk:
        return anthropic(status, error)

    def fold(self, whole: Chunk, chunk: Chunk) -> None:
        match chunk["type"]:
            case "message_start":
                whole |= chunk["message"] | {"content": []}
            case "content_block_start":
                whole["content"].append(dict(chunk["content_block"]))
                if chunk["content_block"]["type"] == "tool_use":
                    whole["content"][-1]["input"] = ""
            case "content_block_delta":
                _fold_delta(whole["content"][-1], chunk["delta"])
            case "content_block_stop":
                if whole["content"][-1]["type"] == "tool_use":
                    whole["content"][-1]["input"] = _object(whole["content"][-1]["input"])
            case "message_delta":
                whole |= chunk["delta"] | {"usage": chunk["usage"]}

    def _say(self, said: Said) -> list[Chunk]:
        match said:
            case Words():
                events = [] if self._open == "text" else self._open_block({"type": "text", "text": ""})
                return [*events, self._of_block("content_block_delta", delta={"type": "text_delta", "text": said.text})]
            case Call():
                return self._open_block({"type": "tool_use", "id": said.id, "name": said.name, "input": {}})
            case _:
                return [self._of_block("content_block_delta", delta={"type": "input_json_delta", "partial_json": said.text})]

    def _of_block(self, kind: str, **fields: Any) -> Chunk:
        return {"type": kind, "index": self._blocks - 1, **fields}

    def _open_block(self, block: Chunk) -> list[Chunk]:
        events = self._close()
        self._blocks += 1
        self._open = block["type"]
        return [*events, self._of_block("content_block_start", content_block=block)]

    def _close(self) -> list[Chunk]:
        was_open, self._open = self._open, None
        return [self._of_block("content_block_stop")] if was_open else []


def _usage(prompt: int, cached: int, completion: int) -> Chunk:
    """Anthropic's prompt tokens are those that were computed."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": completion,
    }


def _fold_delta(block: Chunk, delta: Chunk) -> None:
    if delta["type"] == "text_delta":
        block["text"] += delta["text"]
    else:
        block["input"] += delta["partial_json"]


def _object(text: str) -> Any:
    """A call's arguments as they came; where that is no JSON object, within one, as Anthropic has it."""
    try:
        whole = isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        whole = False
    return msgspec.Raw(text.encode()) if whole else {"INVALID_JSON": text}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
