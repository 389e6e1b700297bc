"""The load tier: one run, or a search for the highest rate, to one outcome."""

from __future__ import annotations

import time

from pitstop.verify.load import charts
from pitstop.verify.load.figures import Figures, compute
from pitstop.verify.load.find_max import Search, find_max, probes_table
from pitstop.verify.load.judge import check_client, check_limits
from pitstop.verify.load.session import Measured, Plan, Session, Show, describe
from pitstop.verify.load.tokens import check_tokens
from pitstop.verify.outcome import Check, Outcome
from pitstop.verify.slo import LoadLimits
from pitstop.verify.target import Target


def quiet(phase: str, done: int, total: int) -> None:
    """Shows nothing."""


def run(target: Target, limits: LoadLimits, plan: Plan, show: Show = quiet) -> Outcome:
    """Load the server as planned and judge it. Raises TargetError or ConfigError when it cannot be measured so."""
    started = time.time()
    with Session(target, limits, plan, show) as session:
        return judge(session, session.measure(plan.schedule), started)


def run_find_max(target: Target, limits: LoadLimits, plan: Plan, show: Show = quiet) -> Outcome:
    """Search for the highest rate that meets the limits, and judge the run that confirmed it, or the last one that failed."""
    started = time.time()
    with Session(target, limits, plan, show) as session:
        search, best = find_max(session)
        return with_search(judge(session, best, started), search)


def judge(session: Session, measured: Measured, started: float) -> Outcome:
    """The outcome of one run."""
    limits, plan = session.limits, session.plan
    client = check_client(measured)
    common = {"tier": "load", "target": session.target.facts, "started": started, "seconds": time.time() - started, "seed": plan.seed}
    setting = {"load": describe(measured.schedule), "planned": measured.planned, "client_ms_p99": measured.headroom.p99}
    if not measured.records:
        return Outcome(**common, checks=[client], figures=setting, notes=["Nothing was measured: a slow client says nothing of a server."])
    figures = compute(measured, limits)
    told = setting | figures.as_json()
    if measured.summary:
        told |= {"client_busy": measured.summary.busy, "locust": measured.summary.locust}
    return Outcome(
        **common,
        checks=[client, check_tokens(session.abilities, measured.records), *check_limits(figures, limits)],
        figures=told,
        tables=charts.tables(told),
        plots=charts.plots(figures, limits),
        notes=[*session.abilities.notes, *_notes(figures)],
    )


def with_search(outcome: Outcome, search: Search) -> Outcome:
    """The outcome of a search's last run, with what the search found."""
    if not outcome.figures.get("requests"):
        return outcome
    check = Check(name="load.max_rate", passed=search.found is not None, reason=search.statement, value=search.found)
    figures = outcome.figures | {"max_rate": search.found, "probes": [probe.as_json() for probe in search.probes]}
    parts = {name: getattr(outcome, name) for name in outcome.__struct_fields__}
    tables = [probes_table(search), *outcome.tables]
    return Outcome(**parts | {"checks": [check, *outcome.checks], "figures": figures, "tables": tables})


def _notes(figures: Figures) -> list[str]:
    notes = [
        "Latencies count from the time at which a request was due, which was fixed before the run; a failed request counts as never ended.",
        "Intervals take requests for independent; under load neighbours wait together, so the truth is somewhat less certain.",
    ]
    if figures.measured.schedule.clients:
        notes[0] = (
            "A closed loop: who waits for a stalled server does not ask it meanwhile, so stalls hardly show. Judge latency by an open loop."
        )
    share = figures.one_token_share
    if figures.itl.size:
        notes.append(
            "Every answer came in as many pieces as tokens: gaps between pieces are gaps between tokens."
            if share == 1
            else f"{share:.0%} of the answers came in as many pieces as tokens; in the others a gap between pieces may span more. "
            "Milliseconds a token divide by the count of the usage."
        )
    cached = sum(record.cached_tokens or 0 for record in figures.whole)
    if cached:
        notes.append(
            f"{cached} prompt tokens ({figures.cached_share:.1%}) came from the server's prefix cache, though no two prompts begin alike."
        )
    short = sum(record.finish != "length" for record in figures.whole)
    if short:
        notes.append(f"{short} of {len(figures.whole)} answers ended before max_tokens: lengths are the model's own.")
    return notes
