"""What passes between a run and the process that sends its requests: the work on standard input, one JSON line a record on its output."""

from __future__ import annotations

from typing import Any

import msgspec


class Job(msgspec.Struct, frozen=True):
    """One request to send. `at`: seconds after the start of the run that it is due; in a closed loop, only the order counts."""

    number: int
    at: float
    kind: str  # the name of its shape in the mix
    prompt: str
    max_tokens: int


class Dialect(msgspec.Struct, frozen=True):
    """How this server is asked: the route, and fields that go with every request."""

    path: str = "/v1/completions"
    fields: dict[str, Any] = {}

    @property
    def chat(self) -> bool:
        return "/chat/" in self.path


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's whole task. `clients` 0: an open loop, each job sent when it is due; else so many clients, each one job after another."""

    url: str
    headers: dict[str, str]
    model: str
    dialect: Dialect
    jobs: list[Job]
    warmup: list[Job] = []  # sent before the start, all at once, and not recorded
    clients: int = 0
    seconds: float | None = None  # a closed loop starts no request after so long
    timeout: float = 60.0  # seconds from a request's sending to its end


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One answer as it came. Times in seconds after the start of the run, on the client's monotonic clock."""

    number: int
    kind: str
    max_tokens: int
    intended: float  # when it was due
    sent: float  # when the client began to send
    pieces: list[float] = []  # when each piece of text came
    end: float  # when the answer ended, well or not
    error: str = ""  # "" or its kind: "HTTP 429", "error event", "cut stream", "timeout", "connection", "not SSE"
    detail: str = ""
    finish: str | None = None
    prompt_tokens: int | None = None  # as the server counted; None: it did not say
    answer_tokens: int | None = None
    cached_tokens: int | None = None
    text: str = ""
    logprobs: int | None = None  # tokens that came with a log-probability; None: none were asked for

    @property
    def first(self) -> float | None:
        """When the first piece came."""
        return self.pieces[0] if self.pieces else None


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The driver's last line: Locust's own count, and the share of one core that the driver used."""

    requests: int
    failures: int
    busy: float
    locust: str  # its version
