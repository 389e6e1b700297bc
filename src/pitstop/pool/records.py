"""A dead worker's last plans go to a file, on a thread, for `pitstop replay`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pitstop.config import Adapter, PoolConfig
from pitstop.engine import crash
from pitstop.pool.journal import Entry
from pitstop.pool.member import Member

log = logging.getLogger(__name__)


class Records:
    """What is being written."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._writing: set[asyncio.Task[Path]] = set()

    def keep(self, member: Member, entries: Sequence[Entry], adapters: tuple[Adapter, ...] = ()) -> None:
        """Write down what a worker was doing when it died; `entries` are those that it had. A worker that ran none leaves nothing."""
        if not self._config.crash_dir or not member.last_plans:
            return
        prompts = self._config.record_prompts
        requests = {entry.request.id: crash.recorded(entry.request, entry.emitted, prompts) for entry in entries}
        what = member.exit_status, replace(member.config, adapters=adapters), member.last_plans, requests
        task = asyncio.create_task(asyncio.to_thread(crash.write, Path(self._config.crash_dir), *what))
        task.add_done_callback(_tell)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def close(self) -> None:
        """Wait for what is being written."""
        await asyncio.gather(*self._writing, return_exceptions=True)


def _tell(task: asyncio.Task[Path]) -> None:
    if task.cancelled() or (error := task.exception()):
        log.warning("a worker's last plans could not be written: %s", "stopped" if task.cancelled() else error)
    else:
        log.error("its last plans are in %s; pitstop replay runs them again", task.result())
