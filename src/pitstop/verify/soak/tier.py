"""The soak itself: rounds of load, an idle moment after each in which everything is read, until the time is up or somebody stops it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx

from pitstop.errors import ConfigError, TargetError
from pitstop.stats.slopes import Slope
from pitstop.verify.outcome import Outcome
from pitstop.verify.slo import SoakLimits
from pitstop.verify.soak import record
from pitstop.verify.soak.counters import IDLE, Counters, Reading
from pitstop.verify.soak.judge import judge, memory_slope, unfollowed
from pitstop.verify.soak.plan import Plan
from pitstop.verify.soak.record import Header, Record, Sample
from pitstop.verify.soak.traffic import Failed, Traffic
from pitstop.verify.target import Target

IDLE_WITHIN = 2.0
"""Seconds after the last answer in which the server must be as idle as it was at the start."""
CLOSED_WITHIN = 0.5
"""Seconds that the server has to close the connections that we closed."""
READABLE_WITHIN = 30.0
"""Seconds that a counter may be unreadable, as while a worker is restarted, before it counts as unread."""
_POLL = 0.05
_USUAL_CONTEXT = 8192


class Progress(NamedTuple):
    """After a round: seconds left, requests sent, errors, and bytes a request as far as they can be told."""

    left: float
    requests: int
    errors: int
    memory: Slope | None


Report = Callable[[Progress], None]


def run(target: Target, limits: SoakLimits, plan: Plan, state: Path | None = None, report: Report | None = None) -> Outcome:
    """Soak a server that nobody else uses. Ctrl-C ends it with the verdict so far.

    state: a new file, to which each sample is written. report: called after each round.

    Raises TargetError when the server does not answer at the start, ConfigError when `state` cannot be begun.
    """
    counters = Counters(target, plan.pid)
    try:
        if (missing := unfollowed(target, limits, plan, counters)) is not None:
            return missing
        return asyncio.run(_begin(target, limits, plan, counters, state, report))
    finally:
        counters.close()


def resume(target: Target, limits: SoakLimits, state: Path, report: Report | None = None) -> Outcome:
    """Go on with a soak that was interrupted, as its state file says. Raises ConfigError when that is another server's, or TargetError."""
    kept = record.reopen(state)
    if kept.header.target["model"] != target.model or kept.header.target["url"] != target.url:
        raise ConfigError(f"{state} is a soak of {kept.header.target['model']} at {kept.header.target['url']}")
    counters = Counters(target, kept.header.plan.pid)
    try:
        return asyncio.run(_Soak(target, limits, kept, counters, report).run())
    finally:
        counters.close()


async def _begin(target: Target, limits: SoakLimits, plan: Plan, counters: Counters, state: Path | None, report: Report | None) -> Outcome:
    context = _context(target)
    traffic = Traffic(target, plan, context)
    try:
        await traffic.first_answers()
    except (Failed, httpx.HTTPError) as error:
        raise TargetError(f"{target.url} does not answer a simple question: {error or type(error).__name__}") from None
    header = Header(
        plan=plan,
        target=target.facts,
        started=time.time(),
        answers=traffic.answers,
        logprobs=traffic.logprobs,
        followed=counters.followed,
        not_followed=counters.not_followed,
        context=context,
    )
    return await _Soak(target, limits, record.begin(header, state), counters, report).run()


def _context(target: Target) -> int:
    """The longest prompt and answer in tokens, as servers say in their list of models; a usual one when they do not."""
    with target.client() as client:
        entries = client.get("/v1/models").json()["data"]
    entry = next(entry for entry in entries if entry["id"] == target.model)
    said = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx_train")
    return min(int(said or _USUAL_CONTEXT), 1 << 17)


class _Soak:
    """One run, from a record's last sample to the end."""

    def __init__(self, target: Target, limits: SoakLimits, kept: Record, counters: Counters, report: Report | None) -> None:
        self._target = target
        self._limits = limits
        self._record = kept
        self._counters = counters
        self._report = report
        last = kept.samples[-1] if kept.samples else None
        self._begun = time.monotonic() - (last.seconds if last else 0)
        self._traffic = Traffic(target, kept.header.plan, kept.header.context, last.number if last else 0)
        self._traffic.answers, self._traffic.logprobs = kept.header.answers, kept.header.logprobs
        if last is not None:
            self._traffic.sent, self._traffic.logprob_shift = last.requests, last.logprob_shift
            self._traffic.tally.update(last.tally)
        self._idle: dict[str, float] = kept.samples[0].readings if kept.samples else {}

    async def run(self) -> Outcome:
        plan, interrupted = self._record.header.plan, False
        try:
            if not self._record.samples:
                self._sample(await self._settle(), {})
                self._idle = self._record.samples[0].readings
            while (left := plan.seconds - self._elapsed()) > 0:
                length = min(plan.round_seconds, left)
                busy = asyncio.create_task(self._busy(length / 2))
                try:
                    await self._traffic.round(length)
                    under_load = await busy
                finally:
                    busy.cancel()
                self._sample(await self._settle(), under_load)
        except asyncio.CancelledError:  # Ctrl-C
            interrupted = True
        return judge(self._record, self._limits, self._elapsed(), interrupted)

    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    async def _busy(self, after: float) -> dict[str, float]:
        await asyncio.sleep(after)
        values = (await asyncio.to_thread(self._counters.read)).values
        return {name: values[name] for name in ("running", "waiting") if name in values}

    async def _settle(self) -> Reading:
        """The counters when the server is idle again, or what they are when it should be."""
        start = time.monotonic()
        last = self._record.samples[-1] if self._record.samples else None
        patience = 0.0 if last and last.unread else READABLE_WITHIN  # what stays unreadable is not waited for every time
        while True:
            reading = await asyncio.to_thread(self._counters.read)
            waited = time.monotonic() - start
            if reading.unread:
                if waited >= patience:
                    return reading
            elif waited > IDLE_WITHIN or (self._idle_again(reading.values) and (waited > CLOSED_WITHIN or _closed(reading.values, last))):
                return reading
            await asyncio.sleep(_POLL)

    def _idle_again(self, values: dict[str, float]) -> bool:
        return all(values.get(name, 0) <= self._idle.get(name, 0) for name in IDLE)

    def _sample(self, reading: Reading, busy: dict[str, float]) -> None:
        traffic = self._traffic
        self._record.add(
            Sample(
                seconds=self._elapsed(),
                number=traffic.number,
                requests=traffic.sent,
                readings=reading.values,
                unread=reading.unread,
                busy=busy,
                tally=dict(traffic.tally),
                drifts=traffic.drifts,
                logprob_shift=traffic.logprob_shift,
            )
        )
        traffic.drifts = []
        if self._report is not None:
            errors = sum(count for name, count in traffic.tally.items() if name.startswith("error"))
            left = max(0.0, self._record.header.plan.seconds - self._elapsed())
            self._report(Progress(left, traffic.sent, errors, memory_slope(self._record)))


def _closed(values: dict[str, float], last: Sample | None) -> bool:
    """No more handles and threads than at the idle moment before."""
    return last is not None and all(values.get(name, 0) <= last.readings.get(name, 0) for name in ("handles", "threads"))
