"""What the server's own processes hold, read from /proc when the metrics are scraped (some 0.1 ms a process)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

_STATUS = re.compile(r"^(RssAnon|VmSwap|Threads):\s*(\d+)", re.MULTILINE)


class Holding(NamedTuple):
    """Anonymous memory in bytes (resident and swapped out), open file descriptors, threads."""

    anonymous: int
    handles: int
    threads: int


def holding(pid: int) -> Holding | None:
    """What a process holds; None when it has gone, or where there is no /proc.

    Its `status`, not `smaps_rollup`: the same figure without a walk over all of the process's pages.
    """
    try:
        found = {name: int(value) for name, value in _STATUS.findall(Path(f"/proc/{pid}/status").read_text())}
        handles = len(os.listdir(f"/proc/{pid}/fd"))
        return Holding(1024 * (found["RssAnon"] + found.get("VmSwap", 0)), handles, found["Threads"])
    except (OSError, KeyError):  # a zombie has no memory
        return None


def families(workers: Iterable[int]) -> Iterator[Metric]:
    """The gauges of this process ("front") and of all workers together ("worker"). A kind without a live process has no sample."""
    held = {"front": [holding(os.getpid())], "worker": [holding(pid) for pid in workers]}
    sums = {name: Holding(*map(sum, zip(*filter(None, kind), strict=True))) for name, kind in held.items() if any(kind)}
    for name, about in (
        ("anonymous_bytes", "Anonymous memory, resident and swapped out."),
        ("open_handles", "Open file descriptors."),
        ("threads", "Threads."),
    ):
        family = GaugeMetricFamily(f"pitstop_process_{name}", about, labels=["process"])
        for process, sum_ in sums.items():
            family.add_metric([process], getattr(sum_, name.removesuffix("_bytes").removeprefix("open_")))
        yield family
