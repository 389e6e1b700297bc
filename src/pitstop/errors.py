"""The exception tree. Every error that a user can meet is one of these, and says what to do next.

PitstopError
├── InvalidRequest            the caller's fault; names the field               HTTP 400
│   ├── ContextLengthExceeded prompt and answer do not fit the context          HTTP 400
│   └── TemplateRefused       the chat template itself raised                   HTTP 400
├── ModelNotFound             no such model is served                           HTTP 404
├── Overloaded                the queue is full; try again after `retry_after`  HTTP 429
├── Unavailable               starting, draining or without a worker            HTTP 503
│   └── WorkerDied            worker after worker that ran it was killed
├── DeadlineExceeded          the request's time is up                          HTTP 504
├── Quarantined               workers crashed when they ran the request         HTTP 500
├── ConfigError               an option that we cannot honour: no start
├── WeightsError              a model file that we cannot trust: no start
├── Unsupported               no implementation takes these inputs: no start
├── UpgradeFailed             a new worker did not pass; the old one serves on
├── DownloadFailed            a model could not be fetched
└── TargetError               a server under test that cannot be measured
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """What to type for one of the optional parts of pyproject.toml. By name pip would fetch somebody else's package."""
    return f"in Pitstop's folder, .venv/bin/pip install -e '.[{extra}]'"


class PitstopError(Exception):
    """Root of the tree; `str()` of it is one line fit for a user."""


class InvalidRequest(PitstopError):
    """The request cannot be honoured as written.

    `field` is the JSON path of the offending value ("messages[0].content"), or None when the body as a whole is at fault;
    `code` is OpenAI's machine-readable code.
    """

    def __init__(self, message: str, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus wished-for answer exceed the served context (all three in tokens)."""

    def __init__(self, prompt_tokens: int, max_tokens: int, context: int, field: str = "messages") -> None:
        super().__init__(
            f"This model's context is {context} tokens; the request has {prompt_tokens} prompt tokens and asks for "
            f"{max_tokens} more ({prompt_tokens + max_tokens} in all). Shorten the prompt or ask for fewer tokens.",
            field,
            "context_length_exceeded",
        )


class TemplateRefused(InvalidRequest):
    """The model's chat template rejected the messages; the message is the template's own."""


class ModelNotFound(PitstopError):
    """The request names a model that is not served here."""


class Overloaded(PitstopError):
    """The bounded queue is full. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(PitstopError):
    """Nobody can take the request now: starting up, draining, or without a worker."""


class WorkerDied(Unavailable):
    """The worker processes that ran the request are gone, and so are its attempts."""


class DeadlineExceeded(PitstopError):
    """The request's time is up."""


class Quarantined(PitstopError):
    """Workers crashed, more than once, when they ran the request: it is not tried again."""


class ConfigError(PitstopError):
    """An option that cannot be honoured; raised before anything starts."""


class WeightsError(PitstopError):
    """A model file is truncated, incomplete, altered or of an unknown kind. Names file and tensor."""

    def __init__(self, path: object, message: str, tensor: str | None = None) -> None:
        where = f"{path}: tensor {tensor}" if tensor else str(path)
        super().__init__(f"{where}: {message}")
        self.path = path
        self.tensor = tensor


class Unsupported(PitstopError):
    """No backend, codec or family takes these inputs; the message lists what was tried and why each declined."""


class UpgradeFailed(PitstopError):
    """A new worker cannot take over, and why; the old one serves on."""


class DownloadFailed(PitstopError):
    """A model could not be fetched; the message says what to try."""


class TargetError(PitstopError):
    """A server under test does not answer as an OpenAI-compatible one, or the measurement itself is void; says why."""
