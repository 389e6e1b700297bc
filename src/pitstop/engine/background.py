"""Work that leaves the processors to others: a worker that is made ready beside one that serves.

Without privileges a thread may lower its priority and not raise it again. So such work runs on a thread of its own, whose priority those
that it starts inherit, and goes on on the caller's, which was never lowered.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

NICE = 10
"""A tenth of a core on which somebody else computes all the time. By 19 it were a seventieth, and a busy server would never be upgraded."""

_GROUP = Path("/proc/self/autogroup")


def run(work: Callable[[], T]) -> T:
    """Call `work` on a thread of low priority and wait for it. Raises what it raises. The caller has no other threads that matter."""
    with ThreadPoolExecutor(1, "background", _lower) as pool:
        result = pool.submit(work).result()
    _set_group(0)
    return result


def _lower() -> None:
    with contextlib.suppress(OSError):  # only Linux has priorities of threads
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    _set_group(NICE)


def _set_group(nice: int) -> None:
    """Where Linux groups processes by session, the groups' priorities count between them. A group's may be raised again."""
    if os.getsid(0) != os.getpid():
        return  # others are in the session
    for _ in range(20):
        try:
            _GROUP.write_text(str(nice))
            return
        except BlockingIOError:  # ten times a second at most, all processes together, the kernel says
            time.sleep(0.05)
        except OSError:  # there are no groups, or they are not ours to change: then threads' priorities count
            return
    log.warning("%s cannot be set to %d: others set theirs all the time", _GROUP, nice)
