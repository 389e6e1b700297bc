"""A soak's state: JSON lines, the first says what is done, each other is one idle moment. It is all that the verdict is made of."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pitstop.errors import ConfigError
from pitstop.verify.soak.plan import Plan

Readings = dict[str, float]


class Drift(msgspec.Struct, frozen=True):
    """A canary's answer that was not its first."""

    prompt: str
    first: str
    now: str


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning. `answers` are the canaries' first; `followed` says of each counter where it is read, `not_followed` why it is not."""

    plan: Plan
    target: dict[str, str]
    started: float  # Unix seconds
    answers: list[str]
    logprobs: list[list[float] | None]
    followed: dict[str, str]
    not_followed: dict[str, str]
    context: int


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """An idle moment `seconds` after the start (interruptions left out), and all that happened until then.

    `readings` of the counters, `unread` for those that could not be read, `busy` under load half a round before. `tally` counts what became
    of the requests; `number` is the next one's.
    """

    seconds: float
    number: int
    requests: int
    readings: Readings
    unread: dict[str, str] = {}
    busy: Readings = {}
    tally: dict[str, int] = {}
    drifts: list[Drift] = []  # the first few since the sample before
    logprob_shift: float = 0.0  # the largest change of a canary's log-probability so far


class Record:
    """Header and samples, in memory and, with a path, on disk: each line is written when it is known."""

    def __init__(self, header: Header, samples: list[Sample], path: Path | None) -> None:
        self.header = header
        self.samples = samples
        self.path = path

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        self._write(sample)

    def _write(self, line: Header | Sample) -> None:
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")


def begin(header: Header, path: Path | None) -> Record:
    """A new record. Raises ConfigError when the file is there already or cannot be written."""
    record = Record(header, [], path)
    if path is not None:
        try:
            path.open("xb").close()
        except FileExistsError:
            raise ConfigError(f"{path} exists; go on with it by --resume {path}, or name another file") from None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
    record._write(header)
    return record


def reopen(path: Path) -> Record:
    """The record in a file, to be gone on with. A last line that was cut off in writing is taken away. Raises ConfigError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    whole = data[: data.rfind(b"\n") + 1]
    first, *rest = whole.splitlines() or [b""]
    try:
        header = msgspec.json.decode(first, type=Header)
        samples = [msgspec.json.decode(line, type=Sample) for line in rest]
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} is no state of a soak: {error}") from None
    if not samples:
        raise ConfigError(f"{path} has no sample yet; begin anew")
    if whole != data:
        path.write_bytes(whole)
    return Record(header, samples, path)
