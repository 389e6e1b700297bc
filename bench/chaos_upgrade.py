"""Upgrades under load: nobody may notice."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
import time
from pathlib import Path

from chaos_server import Kit, Server, serving, show, until
from gguf import GGUFReader

from pitstop.stats.percentiles import percentile
from pitstop.verify.load.arrivals import Schedule
from pitstop.verify.load.mix import Mix, Shape
from pitstop.verify.load.records import Record
from pitstop.verify.load.session import Plan, Session
from pitstop.verify.load.tier import quiet
from pitstop.verify.slo import LoadLimits
from pitstop.verify.target import connect

CLIENTS, EVERY = 16, 16.0
"""Clients, each of which sends a request in so many seconds on average, whatever became of the last one."""

MIX = Mix([Shape("short", 0.6, 32, 16), Shape("middle", 0.3, 128, 64), Shape("long", 0.1, 1024, 128)])
SLOWER = 2.0
"""Times the p95 before that during an upgrade may be."""
AT_LEAST = 10
"""Requests of a phase from which a p95 is worth a word."""
AFTERWARDS, LONGEST = 15.0, 1800.0
"""Seconds that the load goes on after the last upgrade, and in all at most."""
ENDS = ("done", "rolled_back", "cancelled")


def broken(model: Path, folder: Path) -> Path:
    """A copy with the rows of each block's last matrix in the wrong order: it loads, nothing is out of range, and it answers nonsense."""
    copy = folder / f"broken-{model.name}"
    shutil.copyfile(model, copy)
    tensors = [tensor for tensor in GGUFReader(copy, "r+").tensors if tensor.name.endswith("ffn_down.weight")]
    for tensor in tensors:
        tensor.data[:] = tensor.data[::-1].copy()
    return copy


async def upgrade(kit: Kit) -> None:
    """Three upgrades in a row under load: the same model, another codec, a broken model that must be rolled back."""
    before = kit.size(25, 120)
    with tempfile.TemporaryDirectory() as folder:
        spoilt = await asyncio.to_thread(broken, Path(kit.model), Path(folder))
        wishes = {
            "same model": ({}, "done"),
            "int8 codec": ({"kv": "int8"}, "done"),
            "broken model": ({"model": str(spoilt)}, "rolled_back"),
        }
        async with serving(kit, "--context", "2048", "--kv-memory", "256MiB", "--admin") as server:
            if await server.status("/admin/upgrade") == 404:
                kit.promise("upgrades under load", False, "not available: this server has no /admin/upgrade")
                return
            run = asyncio.create_task(asyncio.to_thread(_load, server, clock := _Clock()))
            await until(clock.runs, 60)
            await asyncio.sleep(before)
            spans = {}
            for name, (wish, end) in wishes.items():
                spans[name] = await _one(kit, server, name, wish, end, clock)
                await asyncio.sleep(3)
            last = clock.last = clock.now()
            records = await run
            restarts = await server.metric("pitstop_worker_restarts_total")
    _judge(kit, [record for record in records if record.intended < last], min(start for start, _ in spans.values()), spans)
    kit.promise("no worker dies", restarts == 0, f"{restarts:.0f} restarts")


class _Clock:
    """The load's own: seconds after its start, known from the records that it reports as they end."""

    def __init__(self) -> None:
        self.last = math.inf
        """Until when requests count."""
        self._start: float | None = None

    def saw(self, record: Record) -> bool:
        start = time.monotonic() - record.end
        self._start = start if self._start is None else min(self._start, start)
        return record.intended > self.last + AFTERWARDS

    def now(self) -> float:
        return time.monotonic() - self._start

    async def runs(self) -> bool:
        return self._start is not None


def _load(server: Server, clock: _Clock) -> list[Record]:
    plan = Plan(MIX, Schedule("poisson", CLIENTS / EVERY, LONGEST), timeout=60.0)
    with Session(connect(server.url), LoadLimits(), plan, quiet) as session:
        return session.measure(plan.schedule, clock.saw).records


async def _one(kit: Kit, server: Server, name: str, wish: dict, end: str, clock: _Clock) -> tuple[float, float]:
    """An upgrade, to its end: from when to when it lasted."""
    start = clock.now()
    answer = await server.http.post("/admin/upgrade", json=wish)
    report = answer.json()

    async def ended() -> bool:
        nonlocal report
        report = (await server.http.get("/admin/upgrade")).json()
        return report["state"] in ENDS

    if answer.status_code == 202:
        await until(ended, 120, 0.1)
    span = start, clock.now()
    phases = {phase["state"]: phase["seconds"] for phase in report.get("phases", ())}
    took = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in phases.items() if seconds >= 0.05)
    reason = f": {report['reason']}" if report.get("reason") else ""
    kit.promise(
        f"{name}: {end}",
        report.get("state") == end,
        f"{report.get('state', answer.text[:200])} in {show(span[1] - span[0])} ({took}){reason}",
    )
    kit.figures[name] = {"state": report.get("state"), "seconds": phases}
    return span


def _judge(kit: Kit, records: list[Record], first: float, spans: dict[str, tuple[float, float]]) -> None:
    failed = [record for record in records if record.error]
    short = [record for record in records if not record.error and record.answer_tokens != record.max_tokens]
    missing = max(record.number for record in records) + 1 - len(records)
    lost = f"{len(records)} requests: {len(failed)} failed, {len(short)} truncated, {missing} without an end"
    lost += f": {failed[0].detail}" if failed else ""
    kit.promise("zero failed or truncated", not failed and not short and not missing, lost)
    phases = {"before": [record for record in records if record.end < first]}
    phases |= {name: [record for record in records if record.intended < end and record.end > start] for name, (start, end) in spans.items()}
    p95 = {name: percentile([record.end - record.intended for record in group], 95) for name, group in phases.items() if group}
    for name in spans:
        if len(phases[name]) < AT_LEAST:
            reason = f"{len(phases[name])} requests fell into it: too few for a verdict"
            kit.promise(f"{name}: p95 within {SLOWER:g} times", True, reason)
            continue
        counts = f"{show(p95[name])} of {len(phases[name])} requests, before {show(p95['before'])} of {len(phases['before'])}"
        kit.promise(f"{name}: p95 within {SLOWER:g} times", p95[name] < SLOWER * p95["before"], counts)
    kit.figures |= {"requests": len(records), "failed": len(failed), "p95_s": {name: round(value, 3) for name, value in p95.items()}}
