"""POST /v1/responses."""

from __future__ import annotations

import time
import uuid
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from pitstop.guide.tools import Words
from pitstop.pool import Delta, Pool, Served
from pitstop.server.body import parse
from pitstop.server.conversation import converse, in_words_of
from pitstop.server.generation import generate
from pitstop.server.prepared import Prepared, Shape
from pitstop.server.schema.answers import Chunk
from pitstop.server.schema.responses import NAMES, ResponsesRequest
from pitstop.server.service import Service
from pitstop.server.tools import Call, Said, Voice


async def create_response(http: HTTPRequest) -> Response:
    """Answer a conversation, as OpenAI's newer API has it. Nothing is stored."""
    return await generate(http, prepare_response)


def prepare_response(service: Service, pool: Pool, served: Served, body: bytes, arrival: float) -> Prepared:
    """Check everything, render the template. Raises InvalidRequest or ModelNotFound."""
    wish = parse(body, ResponsesRequest)
    answer_id = f"resp_{uuid.uuid4().hex}"
    with in_words_of(NAMES):
        chat, turns = wish.chat()
    with in_words_of(NAMES, turns):
        requests, voices = converse(service, pool, served, chat, answer_id, arrival)
    shape = ResponseShape(_response(wish, answer_id, service.name_of(requests[0].adapter)), voices[0])
    return Prepared(requests, shape, bool(wish.stream), True)


def _response(wish: ResponsesRequest, answer_id: str, model: str) -> Chunk:
    """The response before anything was said: what was asked for, and what is assumed otherwise."""

    def given(value: Any, otherwise: Any) -> Any:
        return otherwise if value is None else value

    tools = [tool.model_dump() | {"strict": bool(tool.strict)} for tool in wish.tools or ()]
    choice = wish.tool_choice if isinstance(wish.tool_choice, str | None) else wish.tool_choice.model_dump()
    format = wish.text.format if wish.text is not None else None
    return {
        "id": answer_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": wish.instructions,
        "max_output_tokens": wish.max_output_tokens,
        "metadata": given(wish.metadata, {}),
        "model": model,
        "output": [],
        "parallel_tool_calls": given(wish.parallel_tool_calls, True),
        "previous_response_id": None,
        "service_tier": "default",
        "temperature": given(wish.temperature, 1.0),
        "text": {"format": given(format, {"type": "text"})},
        "tool_choice": given(choice, "auto"),
        "tools": tools,
        "top_p": given(wish.top_p, 1.0),
        "truncation": "disabled",
        "usage": None,
    }


class ResponseShape(Shape):
    """Events that open, fill and close one output item after another; the last one has the whole response."""

    typed = True
    last = b""

    def __init__(self, response: Chunk, voice: Voice) -> None:
        self._response = response
        self._voice = voice
        self._events = 0
        self._items: list[Chunk] = []  # the open one, if any, is the last
        self._parts: list[str] = []  # of the open one: text or arguments
        self._open = False

    def chunks(self, index: int, delta: Delta) -> list[Chunk]:
        events = []
        if not self._events:
            events += [self._event(f"response.{name}", response=dict(self._response)) for name in ("created", "in_progress")]
        for said in self._voice.hear(delta):
            events += self._say(said)
        if delta.finish:
            cut = delta.finish == "length"
            events += self._close("incomplete" if cut else "completed")
            self._response |= {
                "status": "incomplete" if cut else "completed",
                "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
                "completed_at": None if cut else int(time.time()),
            }
        return events

    def end(self, usage: Chunk) -> list[Chunk]:
        counts = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        self._response |= {"output": self._items, "usage": counts}
        return [self._event(f"response.{self._response['status']}", response=self._response)]

    def failure(self, status: int, error: Chunk) -> Chunk:
        return self._event("error", **{name: error["error"][name] for name in ("code", "message", "param")})

    def fold(self, whole: Chunk, chunk: Chunk) -> None:
        whole |= chunk.get("response", {})

    def _event(self, kind: str, **fields: Any) -> Chunk:
        self._events += 1
        return {"type": kind, "sequence_number": self._events - 1, **fields}

    def _of_item(self, kind: str, **fields: Any) -> Chunk:
        return self._event(f"response.{kind}", item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **fields)

    def _say(self, said: Said) -> list[Chunk]:
        match said:
            case Words():
                events = [] if self._open and self._items[-1]["type"] == "message" else self._open_message()
                self._parts.append(said.text)
                return [*events, self._of_item("output_text.delta", content_index=0, delta=said.text, logprobs=[])]
            case Call():
                item = {"id": f"fc_{uuid.uuid4().hex}", "type": "function_call", "status": "in_progress"}
                return self._open_item(item | {"call_id": said.id, "name": said.name, "arguments": ""})
            case _:
                self._parts.append(said.text)
                return [self._of_item("function_call_arguments.delta", delta=said.text)]

    def _open_message(self) -> list[Chunk]:
        item = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        return [*self._open_item(item), self._of_item("content_part.added", content_index=0, part=_part(""))]

    def _open_item(self, item: Chunk) -> list[Chunk]:
        events = self._close("completed")
        self._items.append(item)
        self._open, self._parts = True, []
        return [*events, self._event("response.output_item.added", output_index=len(self._items) - 1, item=dict(item))]

    def _close(self, status: str) -> list[Chunk]:
        if not self._open:
            return []
        item, text = self._items[-1], "".join(self._parts)
        item["status"] = status
        if item["type"] == "message":
            item["content"] = [_part(text)]
            events = [
                self._of_item("output_text.done", content_index=0, text=text, logprobs=[]),
                self._of_item("content_part.done", content_index=0, part=_part(text)),
            ]
        else:
            item["arguments"] = text
            events = [self._of_item("function_call_arguments.done", arguments=text)]
        self._open = False
        return [*events, self._event("response.output_item.done", output_index=len(self._items) - 1, item=dict(item))]


def _part(text: str) -> Chunk:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
