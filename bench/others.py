"""Was the machine idle but for the measurement? A figure taken beside other work is worth nothing, and nothing else would show it."""

from __future__ import annotations

import os
import resource
import time
from types import TracebackType

import psutil

MUCH = 0.05


class Others:
    """As a context: `share` of all cores' time, 0 to 1, that processes other than this one and its ended children used."""

    share = 0.0

    def __enter__(self) -> Others:
        self._begin = self._now()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        wall, busy, own = (now - then for now, then in zip(self._now(), self._begin, strict=True))
        self.share = max(0.0, (busy - own) / (wall * (os.cpu_count() or 1)))

    def __str__(self) -> str:
        warning = ": MEASURE AGAIN on an idle machine" if self.share > MUCH else ""
        return f"other processes had {100 * self.share:.0f} % of the cores{warning}"

    @staticmethod
    def _now() -> tuple[float, float, float]:
        times = psutil.cpu_times()
        busy = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)  # guest is counted in user
        usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return time.monotonic(), busy, sum(usage.ru_utime + usage.ru_stime for usage in usages)
