"""The functional tier: every case against a server, one check each."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Literal

import httpx
import msgspec

from pitstop.verify.functional.case import Case, load_cases
from pitstop.verify.functional.expect import Unmet
from pitstop.verify.functional.play import Declined, Player, TooShort, find_context
from pitstop.verify.outcome import Check, Outcome, Table
from pitstop.verify.slo import FunctionalLimits
from pitstop.verify.target import Target

State = Literal["passed", "failed", "unsupported", "skipped"]
STATES: tuple[State, ...] = ("passed", "failed", "unsupported", "skipped")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How one case went; `reason` is "" for one that passed. Unsupported: an optional feature that the server refuses by name."""

    id: str
    theme: str
    title: str
    state: State
    seconds: float
    reason: str = ""


Progress = Callable[[int, int, Result], None]
"""Called after each case: how many are done, of how many, and the case's result."""


def run(target: Target, limits: FunctionalLimits, *, only: str | None = None, seed: int = 0, progress: Progress | None = None) -> Outcome:
    """All cases, or those that `only` matches, in an order drawn from `seed`. Raises ConfigError when none matches."""
    return run_cases(load_cases(only), target, limits, seed=seed, progress=progress)


def run_cases(
    cases: Sequence[Case], target: Target, limits: FunctionalLimits, *, seed: int = 0, progress: Progress | None = None
) -> Outcome:
    """These cases. `figures` of the outcome: a count by state, and `cases`, a `Result` each."""
    started, began = time.time(), time.perf_counter()
    order = random.Random(seed).sample(list(cases), len(cases))
    results = asyncio.run(_play_all(order, target, progress))
    by_id = {result.id: result for result in results}
    ordered = [by_id[case.id] for case in cases]
    counts = {state: sum(result.state == state for result in ordered) for state in STATES}
    return Outcome(
        tier="functional",
        target=target.facts,
        started=started,
        seconds=time.perf_counter() - began,
        seed=seed,
        checks=_checks(ordered, limits.failures),
        figures={**counts, "cases": msgspec.to_builtins(ordered)},
        tables=_tables(ordered),
        notes=["Unsupported: an optional feature that the server refuses by name. Skipped: longer than the server's context."],
    )


def results_of(outcome: Outcome) -> list[Result]:
    """The cases' results of a functional outcome."""
    return msgspec.convert(outcome.figures["cases"], list[Result])


async def _play_all(cases: Sequence[Case], target: Target, progress: Progress | None) -> list[Result]:
    context = await asyncio.to_thread(find_context, target)
    trusted = httpx.create_ssl_context(trust_env=False)  # reading all certificates for each case would take longer than most cases
    results = []
    for case in cases:
        results.append(await play(case, target, context, trusted))
        if progress is not None:
            progress(len(results), len(cases), results[-1])
    return results


async def play(case: Case, target: Target, context: int, trusted: ssl.SSLContext) -> Result:
    """One case within its time, each request on a connection of its own: a server may close an idle one at any moment.

    context: the server's in tokens, 0: unknown. trusted: whose certificates are.
    """
    began = time.perf_counter()
    state, reason = "passed", ""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    client = httpx.AsyncClient(base_url=target.url, headers=target.headers, timeout=None, limits=limits, trust_env=False, verify=trusted)
    try:
        async with client, asyncio.timeout(case.seconds):
            await Player(client, case, target.model, context).play()
    except Unmet as unmet:
        state, reason = "failed", str(unmet)
    except TimeoutError:
        state, reason = "failed", f"expected to end within {case.seconds:g} s"
    except Declined as declined:
        state, reason = "unsupported", str(declined)
    except TooShort as short:
        state, reason = "skipped", str(short)
    seconds = time.perf_counter() - began
    return Result(id=case.id, theme=case.theme, title=case.title, state=state, seconds=seconds, reason=" ".join(reason.split()))


def _checks(results: list[Result], allowed: int | None) -> list[Check]:
    """One a case; no more than `allowed` may fail, None: any number."""
    failures = sum(result.state == "failed" for result in results)
    tolerated = allowed is None or failures <= allowed
    return [
        Check(
            name=f"functional.{result.id}",
            passed=result.state != "failed" or tolerated,
            reason=f"{'failed, tolerated' if result.state == 'failed' and tolerated else result.state}: {result.reason or result.title}",
        )
        for result in results
    ]


def _tables(results: list[Result]) -> list[Table]:
    themes = list(dict.fromkeys(result.theme for result in results))
    rows = [[theme, *_counts(result for result in results if result.theme == theme)] for theme in themes]
    total = ["All", *_counts(results)]
    wrong = [[result.id, result.state, result.reason] for result in results if result.state != "passed"]
    return [
        Table(title="Cases by theme", columns=["Theme", *STATES], rows=[*rows, total]),
        Table(title="Cases that did not pass", columns=["Case", "State", "Why"], rows=wrong),
    ]


def _counts(results) -> list[str]:
    states = [result.state for result in results]
    return [str(states.count(state)) for state in STATES]
