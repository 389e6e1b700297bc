"""What is written when a worker dies: its last plans, and enough of the requests to run them again. No torch."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from pitstop import __version__
from pitstop.config import EngineConfig
from pitstop.engine.recorder import RecordedPlan
from pitstop.errors import PitstopError
from pitstop.types import Request, SamplingParams

KEPT = 20
"""Files in the directory; older ones are removed."""


class RecordedRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that was in flight. Without the operator's leave no token of its prompt or answer, and none of its words (stop strings, a
    grammar, biases), is kept."""

    prompt_tokens: int
    emitted_tokens: int
    params: SamplingParams
    choice: int = 0
    prompt: list[int] | None = None
    emitted: list[int] | None = None
    adapter: str = ""


class Crash(msgspec.Struct, frozen=True):
    """One death of a worker. `worker`: how it ended."""

    version: str
    time: str
    worker: str
    engine: EngineConfig
    plans: list[RecordedPlan]
    requests: dict[str, RecordedRequest]


def recorded(request: Request, emitted: list[int], prompts: bool) -> RecordedRequest:
    """prompts: tokens may be kept."""
    params = request.params if prompts else msgspec.structs.replace(request.params, stop=(), stop_token_ids=(), grammar="", logit_bias={})
    tokens = (request.prompt, list(emitted)) if prompts else (None, None)
    return RecordedRequest(len(request.prompt), len(emitted), params, request.choice, *tokens, request.adapter)


def write(directory: Path, worker: str, engine: EngineConfig, plans: list[RecordedPlan], requests: dict[str, RecordedRequest]) -> Path:
    """The new file's path. Only its owner may read it. Raises OSError."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
    crash = Crash(__version__, stamp, worker, engine, plans, requests)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / f"{stamp.replace(':', '')}-{int(now % 1 * 1000):03d}.json"
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(msgspec.json.format(msgspec.json.encode(crash), indent=1))
    for old in sorted(directory.glob("*.json"))[:-KEPT]:
        with contextlib.suppress(FileNotFoundError):
            old.unlink()
    return path


def load(path: Path) -> Crash:
    """Raises PitstopError for a file that is none of these."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Crash)
    except OSError as error:
        raise PitstopError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise PitstopError(f"{path} is not a record of a crash: {error}") from None
