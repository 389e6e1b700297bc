"""Plays one case against a server: sends its requests, compares the answers with what is expected."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import Any

import httpx

from pitstop.verify.functional.answer import Answer, read_body, read_events
from pitstop.verify.functional.case import Case, Request, Step
from pitstop.verify.functional.expect import Unmet, check
from pitstop.verify.functional.form import check_form
from pitstop.verify.functional.path import fill, find
from pitstop.verify.target import Target

ASSUMED_CONTEXT = 131_072
"""Tokens, for a server that does not say how many it takes."""

ROUTES = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
DEFAULTS = {"temperature": 0, "max_tokens": 16}


class Declined(Exception):
    """The server says that it does not have an optional feature."""


class TooShort(Exception):
    """The server's context is too short for the case."""


def find_context(target: Target) -> int:
    """Tokens of the server's context, 0 when it does not say (in the list of models, or as llama.cpp does in /props)."""
    with target.client() as client:
        models = client.get("/v1/models").json()["data"]
        lengths = [entry.get("max_model_len") for entry in models if entry.get("id") == target.model]
        if lengths and isinstance(lengths[0], int):
            return lengths[0]
        try:
            return int(client.get("/props").json()["default_generation_settings"]["n_ctx"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return 0


class Player:
    """Everything that one case knows while it is played."""

    def __init__(self, client: httpx.AsyncClient, case: Case, model: str, context: int) -> None:
        self._client = client
        self._case = case
        self._context = context
        self._names: dict[str, Any] = {"model": model, "context": context, "n": "${n}"}
        self._answers: dict[str, Any] = {}

    async def play(self) -> None:
        """Raises Unmet for the first expectation that does not hold, Declined or TooShort where the case does not apply."""
        if 0 < self._context < self._case.context:
            raise TooShort(f"needs a context of {self._case.context} tokens, the server has {self._context}")
        for step in self._case.plan:
            for request, got in zip(step.requests, await self._answers_of(step), strict=True):
                if request.name:
                    self._answers[request.name] = got if request.times > 1 else got[0]
        for where, expected in self._case.expect.items():
            check(where, find(self._answers, where), self._fill(expected))

    async def _answers_of(self, step: Step) -> list[list[Answer]]:
        """The answers to each request of a step, as often as it is sent."""
        if not step.at_once:
            return [[await self._send(request, i) for i in range(request.times)] for request in step.requests]
        tasks = [[asyncio.ensure_future(self._send(request, i)) for i in range(request.times)] for request in step.requests]
        every = list(itertools.chain(*tasks))
        try:
            await asyncio.gather(*every)
        finally:
            for task in every:
                task.cancel()
            await asyncio.gather(*every, return_exceptions=True)
        return [[task.result() for task in group] for group in tasks]

    def _fill(self, value: Any, i: int = 0, **more: Any) -> Any:
        try:
            return fill(value, {**self._names, **self._answers, "i": i, **more})
        except KeyError as error:
            raise Unmet(f"${{{error.args[0]}}}: expected an answer that has it") from None

    async def _send(self, request: Request, i: int) -> Answer:
        """One exchange, and what is expected of it."""
        try:
            return await self._exchange_and_check(request, i)
        except Unmet as unmet:
            if request.probe:
                raise Declined(f"{self._case.optional[0]}: {unmet}") from None
            raise

    async def _exchange_and_check(self, request: Request, i: int) -> Answer:
        method, route, content, headers = self._compose(request, i)
        answer = await self._exchange(method, route, content, headers, request)
        if "status" not in request.expect:
            self._check_applies(answer)
        expected = self._fill({"status": 200, **request.expect}, i, this=answer)
        status = expected.pop("status")
        words = f" with the error {json.dumps(answer.error, ensure_ascii=False)[:200]}" if answer.error else ""
        try:
            check("status", answer.status, status)
        except Unmet as unmet:
            raise Unmet(f"{unmet}{words}") from None
        check_form(answer, ROUTES.get(route, ""), request.stream)
        for where, wanted in expected.items():
            check(where, find(answer, where), wanted)
        return answer

    def _compose(self, request: Request, i: int) -> tuple[str, str, bytes | None, dict[str, str]]:
        """Method, path, body and headers."""
        if request.send is not None:
            method, _, route = self._fill(request.send, i).partition(" ")
            content = None if request.raw is None else self._fill(request.raw, i).encode("latin-1")
            body = self._expand(self._fill(request.body, i))
        else:
            method, route, content = "POST", "/v1/chat/completions" if request.chat is not None else "/v1/completions", None
            body = self._expand(self._fill(self._body(request), i))
        headers = {"Content-Type": "application/json"} if content is not None or body is not None else {}
        if body is not None:
            content = json.dumps(body, ensure_ascii=False).encode()
        return method, route, content, {name: value for name, value in {**headers, **request.headers}.items() if value}

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {"model": "${model}"}
        if request.chat is None:
            body["prompt"] = request.complete
        else:
            body["messages"] = request.chat if isinstance(request.chat, list) else [{"role": "user", "content": request.chat}]
        body |= DEFAULTS | ({"stream": True} if request.stream else {}) | request.fields
        return {key: value for key, value in body.items() if key not in request.without}

    def _expand(self, value: Any) -> Any:
        """A copy in which every {repeat: …} is the text that it stands for."""
        if isinstance(value, list):
            return [self._expand(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "repeat" in value:
            times = value["times"] if "times" in value else value["contexts"] * (self._context or ASSUMED_CONTEXT)
            turns = (value["repeat"].replace("${n}", str(turn)) for turn in range(1, times + 1))
            return f"{value.get('before', '')}{''.join(turns)}{value.get('after', '')}"
        return {key: self._expand(item) for key, item in value.items()}

    def _check_applies(self, answer: Answer) -> None:
        """Raise Declined or TooShort where the server says so, of a request that it ought to answer."""
        if answer.status < 400:
            return
        words = json.dumps(answer.error, ensure_ascii=False).lower()
        named = answer.error and any(word.lower() in words for word in self._case.optional)
        if self._case.optional and (answer.status in (404, 405, 501) or (answer.status < 500 and named)):
            raise Declined(f"{self._case.optional[0]}: {answer.status} {words[:160]}")
        if self._case.context and not self._context and answer.status == 400 and "context" in words:
            raise TooShort(f"needs a context of {self._case.context} tokens; {words[:160]}")

    async def _exchange(self, method: str, route: str, content: bytes | None, headers: dict[str, str], request: Request) -> Answer:
        start = time.perf_counter()
        answer = Answer(0, {})
        pieces: list[bytes] = []
        try:
            async with self._client.stream(method, route, content=content, headers=headers) as response:
                answer.status, answer.headers = response.status_code, dict(response.headers)
                events = 0
                async for piece in response.aiter_bytes():
                    answer.first_seconds = answer.first_seconds or time.perf_counter() - start
                    pieces.append(piece)
                    events += piece.count(b"\n\n")
                    if answer.status == 200 and request.close_after is not None and events >= request.close_after:
                        answer.closed = True
                        break
        except httpx.HTTPError as error:
            got = f"after {len(b''.join(pieces))} bytes of the answer" if answer.status else "before an answer"
            raise Unmet(f"the connection broke {got}: {error or type(error).__name__}") from None
        answer.seconds = time.perf_counter() - start
        answer.raw = b"".join(pieces).decode("utf-8", "replace")
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            read_events(answer)
        else:
            read_body(answer)
        return answer
