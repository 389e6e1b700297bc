"""The load: rounds of requests, each of which ends with nothing in flight, and what became of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Coroutine

import httpx

from pitstop.verify.soak.plan import Plan
from pitstop.verify.soak.record import Drift
from pitstop.verify.soak.requests import BAD, CANARIES, Ask, canary, crowd, draw
from pitstop.verify.target import Target

TIMEOUT = 120.0
"""Seconds without a byte after which an answer has failed."""
MOST_IN_FLIGHT = 256
CROWD = 16
KEPT_DRIFTS = 20


class Failed(Exception):
    """An answer that no sound server gives; str() is its kind."""


class Traffic:
    """Sends the requests of a plan from `number` on. What became of them is counted in `tally`: answered, aborted, refused (429), rejected
    (bad input, as it should be), drifted, and "error: kind"."""

    def __init__(self, target: Target, plan: Plan, context: int, number: int = 0) -> None:
        self._target = target
        self._plan = plan
        self._context = context
        self.number = number
        self.sent = 0
        self.tally: Counter[str] = Counter()
        self.drifts: list[Drift] = []
        self.answers: list[str] = []
        self.logprobs: list[list[float] | None] = []
        self.logprob_shift = 0.0
        self._client: httpx.AsyncClient
        self._tasks: set[asyncio.Task] = set()

    async def first_answers(self) -> None:
        """What the canaries say when nothing else runs. Raises Failed, or httpx.HTTPError, when the server does not answer them."""
        async with self._connected():
            for which in range(len(CANARIES)):
                try:
                    answer = await self._whole(canary(which, self._target.model, logprobs=True))
                except Failed:
                    answer = await self._whole(canary(which, self._target.model, logprobs=False))
                self.answers.append(_text(answer))
                self.logprobs.append(_logprobs(answer))

    async def round(self, seconds: float) -> None:
        """Load for so long, a crowd that goes away first, and then until all has been answered. Its connections are closed at the end."""
        async with self._connected():
            await self._abandon()
            end = time.monotonic() + seconds
            try:
                if self._plan.rate is None:
                    await asyncio.gather(*(self._client_loop(end) for _ in range(self._plan.clients)))
                else:
                    await self._arrivals(self._plan.rate, end)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(
            base_url=self._target.url, headers=self._target.headers, timeout=TIMEOUT, limits=limits, trust_env=False
        )
        return self._client

    async def _client_loop(self, end: float) -> None:
        while time.monotonic() < end:
            await self._send(self._next())

    async def _arrivals(self, rate: float, end: float) -> None:
        """Poisson arrivals that wait for nobody, as long as fewer than MOST_IN_FLIGHT are in flight."""
        due = time.monotonic()
        while (due := due + random.Random(f"{self._plan.seed}/gap/{self.number}").expovariate(rate)) < end:
            await asyncio.sleep(due - time.monotonic())
            while len(self._tasks) >= MOST_IN_FLIGHT:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            self._spawn(self._send(self._next()))
        await asyncio.gather(*self._tasks)

    def _spawn(self, work: Coroutine) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self) -> int:
        self.number += 1
        return self.number - 1

    def _next(self) -> Ask:
        return draw(self._plan.seed, self._take(), self._target.model, self._context)

    async def _abandon(self) -> None:
        """Many long answers at once, all left alone when the first of them has begun: some run, some are being read, some are queued.

        The crowd takes a number, so that a round too short for anything else repeats nobody's prompts.
        """
        number = self._take()
        asks = [crowd(self._plan.seed, f"{number}.{i}", self._target.model, self._context) for i in range(CROWD)]
        tasks = [asyncio.create_task(self._first_chunk(ask)) for ask in asks]
        self.sent += CROWD
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            self._count("aborted" if outcome is None or isinstance(outcome, asyncio.CancelledError) else outcome)

    async def _send(self, ask: Ask) -> None:
        """One request, counted."""
        self.sent += 1
        try:
            self._count(await self._ask(ask))
        except (Failed, httpx.HTTPError) as error:
            self._count(error)

    def _count(self, outcome: str | BaseException) -> None:
        if isinstance(outcome, Failed):
            outcome = str(outcome) if str(outcome) == "refused" else f"error: {outcome}"
        elif isinstance(outcome, BaseException):
            outcome = f"error: {type(outcome).__name__}"
        self.tally[outcome] += 1

    async def _ask(self, ask: Ask) -> str:
        """What became of a request. Raises Failed or httpx.HTTPError."""
        if ask.kind == "abort after first":
            await self._first_chunk(ask)
            return "aborted"
        if ask.kind == "abort early":
            try:
                async with asyncio.timeout(ask.patience):
                    await self._streamed(ask)
            except TimeoutError:
                return "aborted"
            return "answered"
        if ask.kind in BAD:
            return await self._bad(ask)
        if ask.kind == "streamed":
            await self._streamed(ask)
        elif ask.kind == "canary":
            self._compare(ask, await self._whole(ask))
        else:
            await self._whole(ask)
        return "answered"

    async def _bad(self, ask: Ask) -> str:
        answer = await self._client.post(ask.path, content=ask.body, headers=_JSON)
        if answer.status_code >= 500:
            raise Failed(f"{answer.status_code} for bad input ({ask.kind})")
        return "rejected" if answer.is_client_error else "bad input taken"

    async def _whole(self, ask: Ask) -> dict:
        answer = await self._client.post(ask.path, content=ask.body, headers=_JSON)
        _check_status(answer)
        try:
            body = answer.json()
            _text(body)
        except (ValueError, KeyError, IndexError, TypeError):
            raise Failed("an answer without text") from None
        return body

    async def _streamed(self, ask: Ask) -> None:
        last = ""
        async with self._client.stream("POST", ask.path, content=ask.body, headers=_JSON) as answer:
            _check_status(answer)
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    last = line.removeprefix("data:").strip()
                    if last.startswith('{"error"'):
                        raise Failed("an error event")
        if last != "[DONE]":
            raise Failed("a stream that was cut off")

    async def _first_chunk(self, ask: Ask) -> None:
        async with self._client.stream("POST", ask.path, content=ask.body, headers=_JSON) as answer:
            _check_status(answer)
            async for _ in answer.aiter_bytes():
                return

    def _compare(self, ask: Ask, answer: dict) -> None:
        self.tally["canaries"] += 1
        first, now = self.answers[ask.canary], _text(answer)
        if now != first:
            self.tally["drifted"] += 1
            if len(self.drifts) < KEPT_DRIFTS:
                self.drifts.append(Drift(CANARIES[ask.canary], first, now))
        before, after = self.logprobs[ask.canary], _logprobs(answer)
        if before and after and now == first:
            self.logprob_shift = max(self.logprob_shift, *(abs(a - b) for a, b in zip(before, after, strict=False)))


_JSON = {"Content-Type": "application/json"}


def _check_status(answer: httpx.Response) -> None:
    if answer.status_code == 429:
        raise Failed("refused")
    if answer.status_code != 200:
        raise Failed(f"status {answer.status_code}")


def _text(answer: dict) -> str:
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"] or "")


def _logprobs(answer: dict) -> list[float] | None:
    try:
        return [float(token["logprob"]) for token in answer["choices"][0]["logprobs"]["content"]]
    except (KeyError, TypeError, ValueError):
        return None
