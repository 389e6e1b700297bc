"""When requests are due: seconds after the start, fixed before a run begins, by a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pitstop.errors import ConfigError

Process = Literal["poisson", "constant", "ramp", "trace"]

SECONDS = 60.0
"""How long a run is that says neither seconds nor requests."""
CLOSED_REQUESTS = 50


@dataclass(frozen=True)
class Schedule:
    """How a load comes. Open loop: `rate` requests a second for `seconds`, or `requests` in all, or a trace. Closed loop: `clients`, each
    with one request after another, `requests` in all (50 a client by default), none begun after `seconds`."""

    process: Process = "poisson"
    rate: float = 2.0
    seconds: float | None = None
    requests: int | None = None
    clients: int = 0
    trace: Path | None = None

    def due(self, seed: int) -> np.ndarray:
        """Due times, float64 [requests]; zeros in a closed loop. Raises ConfigError for what makes no sense."""
        if self.clients < 0 or (self.requests is not None and self.requests < 1):
            raise ConfigError(f"clients must be at least 0 and requests at least 1, got {self.clients} and {self.requests}")
        if self.clients:
            return np.zeros(self.requests or CLOSED_REQUESTS * self.clients)
        if self.process == "trace":
            if self.trace is None:
                raise ConfigError("arrivals by trace need its file")
            return read_trace(self.trace)[: self.requests]
        seconds = self.seconds
        if seconds is None:
            seconds = self.requests / self.rate * (2 if self.process == "ramp" else 1) if self.requests and self.rate > 0 else SECONDS
        return arrivals(self.process, self.rate, seconds, seed, self.requests if self.seconds is None else None)[: self.requests]


def arrivals(process: Process, rate: float, seconds: float, seed: int, count: int | None = None) -> np.ndarray:
    """Due times in [0, seconds), float64, ascending; `rate` in requests a second; `count`: exactly so many.

    poisson: independent, exponential gaps. constant: even gaps. ramp: Poisson with a rate that grows from 0 to `rate` in a straight
    line, by inverting the mean count rate·t²/(2·seconds) (Çinlar 1975). Raises ConfigError when there are none or no such process.
    """
    if not (math.isfinite(rate) and math.isfinite(seconds) and rate > 0 and seconds > 0):
        raise ConfigError(f"rate and seconds must be numbers above 0, got {rate:g} and {seconds:g}")
    if process == "constant":
        due = np.arange(count or math.ceil(rate * seconds)) / rate
    elif process == "poisson":
        due = _unit(rate * seconds, seed, count) / rate
    elif process == "ramp":
        due = np.sqrt(_unit(rate * seconds / 2, seed, count) * 2 * seconds / rate)
    else:
        raise ConfigError(f"arrivals must be poisson, constant, ramp or a trace file, got {process!r}")
    if not due.size:
        raise ConfigError(f"no request is due within {seconds:g} s at {rate:g}/s; give more seconds or a higher rate")
    return due


def read_trace(path: Path) -> np.ndarray:
    """Due times from a text file: seconds, one number a line, ascending; the first is the start. Raises ConfigError naming the line."""
    try:
        lines = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    due: list[float] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = float(line)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or (due and value < due[-1]):
            raise ConfigError(f"{path}, line {number}: must be a number of seconds, not before the line above; got {line.strip()[:40]!r}")
        due.append(value)
    if not due:
        raise ConfigError(f"{path} has no arrivals: write the seconds at which requests are due, one a line")
    return np.asarray(due) - due[0]


def _unit(length: float, seed: int, count: int | None) -> np.ndarray:
    """A Poisson process of rate 1 on [0, length): its count is Poisson, unless given, its points uniform and sorted."""
    random = np.random.default_rng((seed, 0xA771))
    return np.sort(random.uniform(0, length, random.poisson(length) if count is None else count))
