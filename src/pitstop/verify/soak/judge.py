"""From a soak's record to its verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from pitstop.stats.slopes import FEWEST, Slope, slope
from pitstop.verify.outcome import Check, Outcome, Plot, Series
from pitstop.verify.slo import SoakLimits
from pitstop.verify.soak.counters import GROWING, IDLE, Counters
from pitstop.verify.soak.plan import WARM_UP, Plan
from pitstop.verify.soak.record import Drift, Record, Sample
from pitstop.verify.target import Target

KIB, HOUR = 1024, 3600
_POINTS = 500


def unfollowed(target: Target, limits: SoakLimits, plan: Plan, counters: Counters) -> Outcome | None:
    """The failure of a soak that cannot follow what it must; None when it can."""
    asked = {"memory": limits.memory_kb_per_request}
    if plan.pid is not None:
        asked |= {"handles": limits.handles_per_hour, "threads": limits.threads_per_hour}
    checks = [
        Check(name=f"soak.{name}", passed=False, reason=f"cannot be followed: {counters.not_followed[name]}")
        for name, limit in asked.items()
        if limit is not None and name not in counters.followed
    ]
    if not checks:
        return None
    notes = ["Nothing was sent. A limit of null lets a soak go without that counter."]
    return Outcome(tier="soak", target=target.facts, started=time.time(), seconds=0, seed=plan.seed, checks=checks, notes=notes)


def judge(record: Record, limits: SoakLimits, seconds: float, interrupted: bool = False) -> Outcome:
    """The verdict on what was seen so far."""
    verdict = _Verdict(record, limits)
    plan = record.header.plan
    notes = [f"The first {WARM_UP:.0%} of the time is warm-up and not judged for growth.", *verdict.notes()]
    if interrupted:
        notes.insert(0, f"Interrupted after {seconds:.0f} of {plan.seconds:.0f} seconds: this is the verdict so far.")
    return Outcome(
        tier="soak",
        target=record.header.target,
        started=record.header.started,
        seconds=seconds,
        seed=plan.seed,
        checks=verdict.checks(),
        figures=verdict.figures() | {"interrupted": interrupted},
        plots=verdict.plots(),
        notes=notes,
    )


def memory_slope(record: Record) -> Slope | None:
    """Bytes a request so far, None while that cannot be told."""
    return _fit(record, "memory", lambda sample: sample.requests)


def value(sample: Sample, counter: str) -> float | None:
    """A reading; of memory, what is no part of a pool of fixed size that only fills."""
    found = sample.readings.get(counter)
    if counter == "memory" and found is not None:
        return found - sample.readings.get("kv_touched", 0)
    return found


def _fit(record: Record, counter: str, x: Callable[[Sample], float]) -> Slope | None:
    """The slope after the warm-up, in the counter's unit."""
    start = record.samples[-1].seconds * WARM_UP if record.samples else 0
    points = [(x(sample), found) for sample in record.samples if sample.seconds >= start and (found := value(sample, counter)) is not None]
    if len(points) < FEWEST or points[0][0] == points[-1][0]:
        return None
    return slope(*zip(*points, strict=True))


class _Verdict:
    def __init__(self, record: Record, limits: SoakLimits) -> None:
        self._record = record
        self._limits = limits
        self._samples = record.samples
        self._tally = record.samples[-1].tally if record.samples else {}
        self._requests = record.samples[-1].requests if record.samples else 0
        by_request: Callable[[Sample], float] = lambda sample: sample.requests  # noqa: E731
        by_hour: Callable[[Sample], float] = lambda sample: sample.seconds / HOUR  # noqa: E731
        followed = [name for name in GROWING if name in record.header.followed]
        self._per_request = {name: _fit(record, name, by_request) for name in followed}
        self._per_hour = {name: _fit(record, name, by_hour) for name in followed}

    def checks(self) -> list[Check]:
        limits = self._limits
        if not self._samples:
            return [Check(name="soak.answered", passed=False, reason="stopped before anything was read")]
        growing = [
            self._growth("memory", self._per_request, limits.memory_kb_per_request, KIB, "KiB a request"),
            self._growth("handles", self._per_hour, limits.handles_per_hour, 1, "an hour"),
            self._growth("threads", self._per_hour, limits.threads_per_hour, 1, "an hour"),
            self._growth("gpu_memory", self._per_request, limits.gpu_memory_kb_per_request, KIB, "KiB a request"),
        ]
        counted = [
            self._counted("restarts", self._restarts(), limits.restarts, ("worker_restarts", "server_started")),
            *(self._counted(name, self._rise(name), limits.gpu_errors, (name,)) for name in ("gpu_ecc", "gpu_xid", "gpu_links")),
        ]
        judged = [*growing, *counted, *map(self._idle, IDLE), self._drifted(), self._errors(), self._answered()]
        return [check for check in judged if check is not None]

    def _growth(self, name: str, slopes: dict[str, Slope | None], limit: float | None, unit: float, per: str) -> Check | None:
        if limit is None or name not in self._record.header.followed:
            return None
        parts = (name, "kv_touched") if name == "memory" else (name,)
        if (failed := next((check for part in parts if (check := self._unread(part, name))), None)) is not None:
            return failed
        found = slopes[name]
        if found is None:
            reason = f"too short to tell: fewer than {FEWEST} idle moments after the warm-up; soak longer"
            return Check(name=f"soak.{name}", passed=False, reason=reason, limit=limit)
        low, high = found.low / unit, found.high / unit
        between = f"between {low:.3g} and {high:.3g} {per} with 95 % confidence, {limit:g} allowed"
        if high <= limit:
            reason = between
        elif low > limit:
            reason = f"it grows: {between}"
        else:
            reason = f"too short to tell: {between}; {self._longer(high - found.value / unit, limit - found.value / unit)}"
        return Check(name=f"soak.{name}", passed=high <= limit, reason=reason, value=high, limit=limit)

    def _longer(self, half: float, room: float) -> str:
        """What a longer soak would need: with as many rounds, longer each, an interval shrinks as the time grows."""
        if room <= 0:
            return "soak longer"
        needed = self._samples[-1].seconds * half / room
        return f"soak about {needed / HOUR:.1f} hours" if needed > HOUR else f"soak about {needed / 60:.0f} minutes"

    def _counted(self, name: str, count: int, limit: int | None, sources: tuple[str, ...]) -> Check | None:
        if limit is None or not any(source in self._record.header.followed for source in sources):
            return None
        failed = next((check for source in sources if (check := self._unread(source, name)) is not None), None)
        return failed or Check(
            name=f"soak.{name}", passed=count <= limit, reason=f"{count} seen, {limit} allowed", value=count, limit=limit
        )

    def _idle(self, name: str) -> Check | None:
        if name not in self._record.header.followed:
            return None
        if (failed := self._unread(name)) is not None:
            return failed
        at_first, *later = [(sample.seconds, sample.readings[name]) for sample in self._samples]
        off = [(seconds, found) for seconds, found in later if found > at_first[1]]
        reason = f"back to {at_first[1]:g} in all of {len(later)} idle moments"
        if off:
            reason = (
                f"not back to {at_first[1]:g} within 2 s in {len(off)} of {len(later)} idle moments: {off[0][1]:g} after {off[0][0]:.0f} s"
            )
        worst = max((found for _, found in later), default=at_first[1])
        return Check(name=f"soak.{name}", passed=bool(later) and not off, reason=reason, value=worst, limit=at_first[1])

    def _unread(self, counter: str, name: str = "") -> Check | None:
        """The failed check (`name`, by default the counter's) of a counter that was followed and could not be read at some moment."""
        for sample in self._samples:
            if counter in self._record.header.followed and counter not in sample.readings:
                why = sample.unread.get(counter, "no reading")
                return Check(name=f"soak.{name or counter}", passed=False, reason=f"could not be read after {sample.seconds:.0f} s: {why}")
        return None

    def _restarts(self) -> int:
        """Workers replaced, and starts of the server as a whole."""
        count = 0
        for before, after in zip(self._samples, self._samples[1:], strict=False):
            old, new = before.readings, after.readings
            again = (
                abs(new.get("server_started", 0) - old.get("server_started", 0)) > 1 and "server_started" in new and "server_started" in old
            )
            workers = new.get("worker_restarts", 0) - (0 if again else old.get("worker_restarts", 0))
            count += again + max(0, int(workers))
        return count

    def _rise(self, name: str) -> int:
        values = [sample.readings[name] for sample in self._samples if name in sample.readings]
        return int(max(values) - values[0]) if values else 0

    def _drifted(self) -> Check | None:
        limit = self._limits.drifted_answers
        if limit is None:
            return None
        asked, drifted = self._tally.get("canaries", 0), self._tally.get("drifted", 0)
        reason = f"{drifted} of {asked} answers at temperature 0 were not the first one, {limit} allowed"
        if drifts := self._drifts():
            reason += f": {drifts[0].now!r} instead of {drifts[0].first!r}"
        return Check(name="soak.drifted_answers", passed=asked > 0 and drifted <= limit, reason=reason, value=drifted, limit=limit)

    def _drifts(self) -> list[Drift]:
        return [drift for sample in self._samples for drift in sample.drifts]

    def _errors(self) -> Check | None:
        limit = self._limits.error_share
        if limit is None:
            return None
        errors = {name.removeprefix("error: "): count for name, count in self._tally.items() if name.startswith("error")}
        share = sum(errors.values()) / max(1, self._requests)
        reason = f"{sum(errors.values())} of {self._requests} requests"
        if errors:
            reason += ": " + ", ".join(f"{count} {name}" for name, count in sorted(errors.items(), key=lambda item: -item[1]))
        return Check(name="soak.error_share", passed=share <= limit, reason=reason, value=share, limit=limit)

    def _answered(self) -> Check:
        """Without answers nothing was soaked."""
        answered, refused = self._tally.get("answered", 0), self._tally.get("refused", 0)
        reason = f"{answered} requests answered, {refused} refused because the queue was full"
        return Check(name="soak.answered", passed=answered > refused, reason=reason, value=answered, limit=refused)

    def figures(self) -> dict[str, Any]:
        last = self._samples[-1] if self._samples else None
        slopes = {
            name: {
                f"{name}_per_request": self._per_request[name] and self._per_request[name][:3],
                f"{name}_per_hour": self._per_hour[name] and self._per_hour[name][:3],
            }
            for name in self._per_request
        }
        return {
            "plan": msgspec.to_builtins(self._record.header.plan),
            "requests": self._requests,
            "requests_per_second": self._requests / last.seconds if last and last.seconds else 0,
            "idle_moments": len(self._samples),
            "tally": self._tally,
            "slopes_with_interval": {key: found for pair in slopes.values() for key, found in pair.items()},
            "first": self._samples[0].readings if last else {},
            "last": last.readings if last else {},
            "logprob_shift": last.logprob_shift if last else 0,
            "followed": self._record.header.followed,
            "drifts": [msgspec.to_builtins(drift) for drift in self._drifts()[:20]],
        }

    def notes(self) -> list[str]:
        header = self._record.header
        notes = [f"Followed: {', '.join(f'{name} ({where})' for name, where in header.followed.items())}."]
        if header.not_followed:
            reasons: dict[str, list[str]] = {}
            for name, why in header.not_followed.items():
                reasons.setdefault(why, []).append(name)
            notes += [f"Not followed: {', '.join(names)}: {why}." for why, names in reasons.items()]
        if self._tally.get("bad input taken"):
            notes.append(f"{self._tally['bad input taken']} requests with bad input were answered as if they were good.")
        return notes

    def plots(self) -> list[Plot]:
        samples = self._samples[:: -(-len(self._samples) // _POINTS)] if self._samples else []
        hours = [sample.seconds / HOUR for sample in samples]

        def line(name: str, find: Callable[[Sample], float | None], unit: float = 1) -> Series:
            points = [(x, found / unit) for x, sample in zip(hours, samples, strict=True) if (found := find(sample)) is not None]
            return Series(name=name, x=[x for x, _ in points], y=[y for _, y in points])

        def plot(title: str, unit: str, *series: Series) -> Plot:
            return Plot(title=title, kind="line", x_label="hours", y_label=unit, series=list(series))

        memory = [line("anonymous memory", lambda sample: value(sample, "memory"), KIB**2)]
        if fitted := self._per_hour.get("memory"):
            start, end = hours[-1] * WARM_UP, hours[-1]
            memory.append(Series(name="fitted", x=[start, end], y=[fitted.at(start) / KIB**2, fitted.at(end) / KIB**2]))
        plots = [plot("Memory when idle", "MiB", *memory)]
        plots.append(plot("Handles and threads when idle", "open", *(line(n, lambda s, n=n: value(s, n)) for n in ("handles", "threads"))))
        in_flight = [line(f"{name} under load", lambda sample, name=name: sample.busy.get(name)) for name in ("running", "waiting")]
        plots.append(plot("Requests in flight", "requests", *in_flight, line("running when idle", lambda sample: value(sample, "running"))))
        return [p for p in plots if any(series.x for series in p.series)]
