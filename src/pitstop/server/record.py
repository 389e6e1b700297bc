"""What is known of each HTTP request, for its line in the access log and its trace."""

from __future__ import annotations

import logging
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from pitstop.types import SamplingParams

log = logging.getLogger("pitstop.access")


@dataclass(slots=True)
class Record:
    """One request. Times in seconds of the monotonic clock, None for what has not come about."""

    id: str
    method: str = "GET"
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)  # those that carry a trace from elsewhere
    route: str = "other"
    status: int = 0
    key: int | None = None  # the API key's number
    model: str | None = None
    answer: str | None = None  # the answer's id
    params: SamplingParams | None = None
    choices: int = 1
    stream: bool = False
    prompts: list[str] | None = None  # their text, when the operator wants it logged
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish: list[str] = field(default_factory=list)
    error: str | None = None  # the error's code
    began: float = field(default_factory=time.monotonic)
    encoding: float | None = None
    queued: float | None = None
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None

    def fields(self) -> dict[str, Any]:
        """For a structured log; times became seconds since the request began. Holds no prompt text unless `prompts` is set."""
        seen = {
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "key": self.key,
            "model": self.model,
            "answer": self.answer,
            "stream": self.stream if self.model else None,
            "prompts": self.prompts,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens if self.model else None,
            "completion_tokens": self.completion_tokens if self.model else None,
            "finish": ",".join(self.finish) or None,
            "error": self.error,
        }
        for name, at in (("queued", self.queued), ("admitted", self.admitted), ("first_token", self.first_token), ("ended", self.ended)):
            seen[f"{name}_s"] = round(at - self.began, 6) if at is not None else None
        return {name: value for name, value in seen.items() if value is not None}

    def log(self) -> None:
        """The access line: one a request. Those of probes and scrapes are for debugging."""
        words = [f"{self.method} {self.route} {self.status} in {(self.ended or self.began) - self.began:.3f} s"]
        if self.model is not None:
            words.append(f"{self.prompt_tokens}+{self.completion_tokens} tokens")
        words += [*self.finish, *([self.error] if self.error else [])]
        level = logging.DEBUG if self.method == "GET" and self.status < 500 else logging.INFO
        log.log(level, ", ".join(words), extra={"fields": self.fields()})


current: ContextVar[Record | None] = ContextVar("pitstop_request", default=None)
"""The record of the request that the running task belongs to; its timers and threads included."""


def record() -> Record:
    """The current request's record; outside of one, one that nobody reads."""
    return current.get() or Record("")


def name_requests_in_logs() -> None:
    """Every line that is logged from now on gets an attribute `request`: the current request's id, or ""."""
    make = logging.getLogRecordFactory()
    if getattr(make, "names_requests", False):
        return

    def named(*args: Any, **kwargs: Any) -> logging.LogRecord:
        line = make(*args, **kwargs)
        about = current.get()
        line.request = about.id if about is not None else ""
        return line

    named.names_requests = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(named)
