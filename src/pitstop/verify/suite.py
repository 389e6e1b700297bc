"""Several tiers in a row. One that breaks is a failed check with its reason, and the others still run."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pitstop.errors import PitstopError, TargetError
from pitstop.verify.outcome import Check, Outcome, TierName
from pitstop.verify.slo import SLO, SoakLimits
from pitstop.verify.target import Target

Show = Callable[[str, int, int], None]
"""Progress of a tier: what is done now, how much of it, of how much; 0, 0 when that cannot be told."""


@dataclass(frozen=True)
class Lengths:
    """How long the tiers take: load and soak in seconds, the load's rate in requests a second, quality in tokens of each text."""

    load: float
    soak: float
    rate: float
    text: int


WHOLE = Lengths(load=60, soak=120, rate=2, text=512)
QUICK = Lengths(load=20, soak=60, rate=2, text=128)
QUICK_LIMITS = SLO(soak=SoakLimits(memory_kb_per_request=None))
"""A minute holds too few requests to tell a leak of a quarter KiB each from an allocator's moods."""
UNJUDGED_MEMORY = "The growth of memory is drawn and not judged: no limit is set for it, as in a quick run, which is too short to tell."


@dataclass(frozen=True)
class Stage:
    """A tier that is to run against a target."""

    tier: TierName
    target: Target
    seed: int
    run: Callable[[Show], Outcome]


def stages(target: Target, limits: SLO, lengths: Lengths, seed: int, pid: int | None = None) -> list[Stage]:
    """Functional, load and soak of one server. pid: its main process, where the soak cannot find it."""

    def functional(show: Show) -> Outcome:
        from pitstop.verify import functional

        return functional.run(target, limits.functional, seed=seed, progress=lambda done, total, result: show(result.id, done, total))

    def load(show: Show) -> Outcome:
        from pitstop.verify import load

        plan = load.Plan(schedule=load.Schedule(rate=lengths.rate, seconds=lengths.load), seed=seed)
        return load.run(target, limits.load, plan, show)

    def soak(show: Show) -> Outcome:
        from pitstop.verify import soak

        plan = soak.Plan(seconds=lengths.soak, seed=seed, pid=pid)
        found = soak.run(target, limits.soak, plan, report=lambda now: show("soaking", int(lengths.soak - now.left), int(lengths.soak)))
        if limits.soak.memory_kb_per_request is None:
            found = msgspec.structs.replace(found, notes=[UNJUDGED_MEMORY, *found.notes])
        return found

    return [Stage("functional", target, seed, functional), Stage("load", target, seed, load), Stage("soak", target, seed, soak)]


def quality_stage(target: Target, reference: Target, limits: SLO, lengths: Lengths, seed: int) -> Stage:
    """The target against a reference that must split text into the same tokens."""

    def quality(show: Show) -> Outcome:
        from pitstop.verify import quality

        return quality.run(reference, target, limits.quality, quality.Plan(window=lengths.text, windows=1), show)

    return Stage("quality", target, seed, quality)


def same_tokens(a: Target, b: Target) -> bool:
    """Whether both split the quality tier's texts alike; not, when one of them does not tell."""
    from pitstop.verify.quality.plan import built_in_texts
    from pitstop.verify.quality.side import Side

    try:
        with Side("A", a) as first, Side("B", b) as second:
            return all(first.tokens(text) == second.tokens(text) for text in built_in_texts().values())
    except TargetError:
        return False


def run_stages(planned: Iterable[Stage], show: Callable[[Stage], Show]) -> Iterator[Outcome]:
    """One outcome a stage, until all are done or Ctrl-C: then the stage at work is a failed check, and the rest is left out."""
    for stage in planned:
        started = time.time()
        try:
            outcome = stage.run(show(stage))
        except KeyboardInterrupt:
            yield _broken(stage, started, "stopped by Ctrl-C before its end", interrupted=True)
            return
        except (PitstopError, SystemExit) as error:
            outcome = _broken(stage, started, str(error) or type(error).__name__)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome = _broken(stage, started, f"{type(error).__name__}: {error} (at {Path(where.filename).name}:{where.lineno})")
        yield outcome
        if outcome.figures.get("interrupted"):
            return


def _broken(stage: Stage, started: float, reason: str, interrupted: bool = False) -> Outcome:
    check = Check(name=f"{stage.tier}.ran", passed=False, reason=" ".join(reason.split())[:500])
    return Outcome(
        tier=stage.tier,
        target=stage.target.facts,
        started=started,
        seconds=time.time() - started,
        seed=stage.seed,
        checks=[check],
        figures={"interrupted": interrupted},
    )
