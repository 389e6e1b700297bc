"""What the server under test takes, asked before the load: its route, endless answers, token counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from pitstop.errors import TargetError
from pitstop.verify.load.client import Client
from pitstop.verify.load.records import Dialect, Job, Record, Work
from pitstop.verify.load.texts import Count
from pitstop.verify.target import Target

PATHS = ("/v1/completions", "/v1/chat/completions")
SAMPLE = 120
"""Characters of the probes' prompts: they fit any context."""
ANSWER = 8


@dataclass(frozen=True)
class Abilities:
    """`tokens`: tokens of bare text, None where the server does not say; `added`: what it puts around a prompt; `scored`: an answer
    with log-probabilities, None where it gives none."""

    dialect: Dialect
    tokens: Count | None
    added: int
    characters_per_token: float
    scored: Record | None
    notes: list[str]

    @property
    def count(self) -> Count | None:
        """Prompt tokens of a text as the server will count them."""
        tokens = self.tokens
        return None if tokens is None else lambda text: tokens(text) + self.added


def probe(target: Target, http: httpx.Client, source: str, timeout: float) -> Abilities:
    """Ask. Raises TargetError when the server gives no streamed answer on any route."""

    def ask(dialect: Dialect, text: str) -> Record:
        work = Work(url=target.url, headers=target.headers, model=target.model, dialect=dialect, jobs=[], timeout=timeout)
        return Client(work).ask(Job(0, 0.0, "probe", text, ANSWER), time.perf_counter(), 0.0)

    begin = len(source) // 2
    short, long = source[begin : begin + SAMPLE], source[begin + SAMPLE : begin + 3 * SAMPLE]
    dialect, first = _dialect(target, ask, short)
    notes = [] if dialect.fields else ["the server does not take ignore_eos: answers end when its model ends them"]
    tokens = _tokenizer(target, http)
    if tokens is not None:
        added = (first.prompt_tokens or tokens(short)) - tokens(short)
        ratio = len(long) / max(1, tokens(long))
    else:
        second = ask(dialect, long)
        if not first.prompt_tokens or not second.prompt_tokens or second.prompt_tokens <= first.prompt_tokens:
            raise TargetError(
                f"{target.url} says neither in /tokenize nor in usage how many tokens a prompt has: no prompt of a set length"
            )
        added, ratio = 0, (len(long) - len(short)) / (second.prompt_tokens - first.prompt_tokens)
        notes.append("the server has no /tokenize: prompts are cut by its mean of characters a token, and are about 5 % shorter than asked")
    scores = {"logprobs": True} if dialect.chat else {"logprobs": 1}
    scored = ask(Dialect(dialect.path, dialect.fields | scores), short)
    if scored.error or scored.logprobs is None:
        scored = None
        notes.append("the server streams no log-probabilities: answer tokens are not counted by them")
    return Abilities(dialect, tokens, added, ratio, scored, notes)


def _dialect(target: Target, ask: Callable[[Dialect, str], Record], text: str) -> tuple[Dialect, Record]:
    """The first route and fields that give an answer, and that answer."""
    record = None
    for path in PATHS:
        for fields in ({"ignore_eos": True}, {}):
            dialect = Dialect(path, fields)
            record = ask(dialect, text)
            if not record.error:
                return dialect, record
            if record.error not in ("HTTP 400", "HTTP 422"):
                break
        if record.error not in ("HTTP 404", "HTTP 405", "HTTP 501"):
            break
    raise TargetError(f"{target.url}{dialect.path} gives no streamed answer ({record.error}): {record.detail}")


def _tokenizer(target: Target, http: httpx.Client) -> Count | None:
    """Tokens of a text by POST /tokenize, which servers spell in two ways."""
    for field in ("prompt", "content"):
        body = {"model": target.model} if field == "prompt" else {}
        if _count(http, body | {field: "Hello, world."}):
            return lambda text, field=field, body=body: _count(http, body | {field: text})
    return None


def _count(http: httpx.Client, body: dict) -> int:
    try:
        answer = http.post("/tokenize", json=body)
        return len(answer.json()["tokens"]) if answer.status_code == 200 else 0
    except httpx.HTTPError as error:
        raise TargetError(f"{http.base_url}/tokenize: {error or type(error).__name__}") from None
    except (ValueError, KeyError, TypeError):
        return 0
