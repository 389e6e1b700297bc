"""When a silent worker is taken for hung: the limit follows from the work it may be doing and from how fast it has been."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

import psutil

from pitstop.engine.pace import work
from pitstop.engine.protocol import Ready, Step
from pitstop.types import Request

TICK = 0.25
"""Seconds between two looks."""

FACTOR = 10.0
"""How much longer than foreseen a step may compute: other processes may have the cores."""

STILL_FACTOR = 2.0
"""The same for a worker that uses no processor time at all, beside the floor: it may wait for an accelerator."""

Pulse = Literal["busy", "still", "stopped"]

_RECENT = 64  # steps whose pace counts


class Watch:
    """The silence of one worker incarnation.

    A step's work is known before it runs: the worker says with each step what the next one may be at most (`Step.ahead`); requests that
    it had not taken by then are added here.
    """

    def __init__(self, ready: Ready, prefill_chunk: int, floor: float) -> None:
        """floor: seconds that no silence is shorter than, whatever the work."""
        self.silence = 0.0
        self._still = 0.0  # seconds of the silence, up to now, without processor time
        self._floor = floor
        self._chunk = prefill_chunk
        self._attended_cost = ready.attended_cost
        self._paces = deque([ready.pace], maxlen=_RECENT)  # seconds a unit of work
        self._ahead = 0.0
        self._taken = 0
        self._lengths: deque[int] = deque()  # of requests that the worker had not taken when it spoke last

    def submitted(self, request: Request) -> None:
        self._lengths.append(len(request.prompt) + len(request.emitted))

    def heard(self, step: Step) -> None:
        self.silence = 0.0
        self._ahead = step.ahead
        for _ in range(step.taken - self._taken):
            self._lengths.popleft()
        self._taken = step.taken
        if step.work:
            self._paces.append(step.seconds / step.work)

    def passed(self, seconds: float, pulse: Callable[[], Pulse]) -> bool:
        """So much time went by since the last look, while the worker had work. True: it hangs.

        It may be silent for `limit`; for less when it stands still, and when it has been stopped (SIGSTOP) just for the floor.
        No more than two ticks are believed: when the front itself was late, or the whole machine stood still, so may the worker have been.
        """
        seconds = min(seconds, 2 * TICK)
        self.silence += seconds
        if self.silence <= 2 * TICK:
            self._still = 0.0
            return False
        state = pulse()
        self._still = 0.0 if state == "busy" else self._still + seconds
        stopped = state == "stopped" and self.silence > self._floor
        return stopped or self._still > self._floor + STILL_FACTOR * self._foreseen or self.silence > self.limit

    @property
    def limit(self) -> float:
        """Seconds of silence that the work in hand can explain."""
        return max(self._floor, FACTOR * self._foreseen)

    @property
    def _foreseen(self) -> float:
        """Seconds that the step in hand may take, by the pace of late."""
        pace = sorted(self._paces)[-2:][0]  # the slowest but one: a single hiccup is no measure
        return pace * (self._ahead + self._unread())

    def _unread(self) -> float:
        """Work that the requests not yet taken may add to a step."""
        if not self._lengths:
            return 0.0
        rows = min(sum(self._lengths), self._chunk)
        return work(rows, rows * max(self._lengths), self._attended_cost)


class Vitals:
    """What the operating system says of a worker process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used = 0.0

    def pulse(self) -> Pulse:
        """Since the last call. Waiting for a disk counts as busy: the weights may be paged in."""
        try:
            process = psutil.Process(self._pid)
            status, times = process.status(), process.cpu_times()
        except psutil.Error:  # it is just ending
            return "busy"
        used, self._used = self._used, times.user + times.system
        if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return "stopped"
        return "busy" if self._used > used or status == psutil.STATUS_DISK_SLEEP else "still"
