"""The load tier against the real front with a worker without a model: a clean server passes, each fault is caught by its own check.

Limits and faults lie seconds apart from what the worker needs, which is milliseconds, so that a busy machine changes no verdict.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import Server, fake_server

from pitstop.errors import ConfigError, TargetError
from pitstop.stats.intervals import rank_percentile
from pitstop.verify.load import Plan, Schedule, run, run_find_max, session
from pitstop.verify.load.arrivals import arrivals
from pitstop.verify.load.driving import drive
from pitstop.verify.load.headroom import Headroom, Needs, measure_client
from pitstop.verify.load.mix import Mix, Shape
from pitstop.verify.load.records import Dialect, Job, Record, Work
from pitstop.verify.load.texts import Prompts, read_source
from pitstop.verify.outcome import Outcome
from pitstop.verify.slo import LoadLimits
from pitstop.verify.target import Target, connect

TINY = Mix([Shape("short", 0.8, 40, 8), Shape("long", 0.2, 90, 16)])
EASY = LoadLimits(e2e_p95_ms=2000, within_ms=4000, ttft_p95_ms=2000, itl_p95_ms=2000)


def load(server: Server, limits: LoadLimits = EASY, schedule: Schedule = Schedule("constant", 20, requests=30), **plan) -> Outcome:
    return run(connect(server.url), limits, Plan(TINY, schedule, **plan))


def failed(outcome: Outcome) -> set[str]:
    return {check.name for check in outcome.failures}


@pytest.fixture(scope="module")
def clean():
    with fake_server() as server:
        yield server


def test_a_clean_server_passes(clean: Server) -> None:
    outcome = load(clean)
    assert outcome.passed, outcome.failures
    assert {check.name for check in outcome.checks} == {
        "load.client",
        "load.tokens",
        "load.prefix_cache",
        "load.e2e_p95_ms",
        "load.ttft_p95_ms",
        "load.itl_p95_ms",
        "load.within_share",
        "load.error_share",
    }
    figures = outcome.figures
    assert figures["requests"] == figures["within"] == figures["good"] == 30
    assert figures["answer_tokens"] == {"long": {"mean": 16, "least": 16, "most": 16}, "short": {"mean": 8, "least": 8, "most": 8}}
    assert 39 <= figures["prompt_tokens"]["short"]["least"] <= figures["prompt_tokens"]["short"]["most"] <= 40
    assert figures["cached_tokens"] == 3 * 30  # the worker claims three a prompt
    assert any("prefix cache" in note for note in outcome.notes)
    within = next(check for check in outcome.checks if check.name == "load.within_share")
    assert "too small to prove the limit: that takes 5990 requests" in within.reason
    assert [plot.kind for plot in outcome.plots] == ["scatter", "cdf", "cdf", "cdf"]


@pytest.mark.slow
def test_a_clean_server_passes_twenty_times_in_twenty(clean: Server) -> None:
    outcomes = [load(clean, seed=seed) for seed in range(20)]
    assert [outcome.failures for outcome in outcomes] == [[]] * 20


@pytest.mark.parametrize(
    ("fault", "requests", "caught"),
    [
        ("slow-first=2100", 8, {"load.e2e_p95_ms", "load.ttft_p95_ms"}),
        ("drop=5", 30, {"load.error_share", "load.within_share", "load.e2e_p95_ms"}),
        ("pairs", 30, {"load.tokens"}),
    ],
)
def test_each_fault_is_caught_by_its_check(fault: str, requests: int, caught: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "measure_client", lambda needs, *_: Headroom(needs, 1.0, 0.1, 1000.0))  # others measure it
    with fake_server("--fault", fault) as server:
        outcome = load(server, schedule=Schedule("constant", 20, requests=requests))
    assert failed(outcome) == caught
    if fault == "drop=5":
        assert outcome.figures["errors"] == {"cut stream": 6}
    if fault == "pairs":
        assert "usage counts" in outcome.failures[0].reason


def latencies(server: Server, due: list[float], clients: int = 0, seconds: float | None = None) -> list[float]:
    """Seconds from the intended time to the end of each answer, in order; errors are none."""
    prompts = Prompts(read_source(), 0, None, 1.0)
    jobs = [Job(number, at, "tiny", prompts.take(60), 4) for number, at in enumerate(due)]
    dialect = Dialect(fields={"ignore_eos": True})
    work = Work(url=server.url, headers={}, model="toy", dialect=dialect, jobs=jobs, clients=clients, seconds=seconds)
    records, summary = drive(work)
    assert summary.requests == len(records)
    assert summary.failures == 0
    return [record.end - record.intended for record in records]


def test_a_stall_of_two_seconds_shows_in_p95_of_an_open_loop() -> None:
    """Of 100 requests in 5 s, 40 are due during the stall, and half of those wait for more than a second of it."""
    with fake_server("--fault", "stall=1") as server:
        took = latencies(server, arrivals("constant", 20, 5, 0).tolist())
    assert rank_percentile(took, 95) > 1.0
    assert rank_percentile(took, 50) < 1.0


def test_the_same_stall_hides_from_a_closed_loop() -> None:
    """The one client waits, and asks nothing meanwhile: one slow answer among many."""
    with fake_server("--fault", "stall=1") as server:
        took = latencies(server, [0.0] * 5000, clients=1, seconds=4.5)
    assert max(took) > 1.0
    assert len(took) > 60
    assert rank_percentile(took, 95) < 1.0


def test_a_late_client_counts_against_the_latency(clean: Server) -> None:
    """Due 3 s before the start: the client can only be late, and the lateness is latency."""
    took = latencies(clean, [-3.0, -3.0, 0.0])
    assert min(took[:2]) > 2.9  # the start is set a moment ahead
    assert took[2] < 2.9


def test_a_closed_loop() -> None:
    limits = LoadLimits(e2e_p95_ms=None, within_ms=None)
    with fake_server("--fault", "slow-first=100") as server:  # at full speed the client would be the bottleneck, and refuse
        outcome = load(server, limits, Schedule(clients=3, requests=24))
    assert outcome.passed, outcome.failures
    assert outcome.figures["requests"] == 24
    assert 5 < outcome.figures["requests_per_s"] <= 30  # three at a time, each 0.1 s or more
    assert any(note.startswith("A closed loop") for note in outcome.notes)


def test_a_client_that_cannot_keep_up_refuses_a_verdict(clean: Server) -> None:
    outcome = load(clean, schedule=Schedule("poisson", 50_000, seconds=1))
    assert failed(outcome) == {"load.client"}
    assert outcome.checks[0].reason.startswith("REFUSED: the client is the bottleneck")
    assert "requests" not in outcome.figures


def test_the_null_server_measures_the_client() -> None:
    needs = Needs(rate=5, clients=0, allowed=2000)
    headroom = measure_client(needs, TINY, read_source())
    assert 0 < headroom.p99 < 2000
    assert headroom.refusal == ""
    assert headroom.covers(Needs(4, 0, 3000))
    assert not headroom.covers(Needs(6, 0, 3000))
    assert not headroom.covers(Needs(4, 0, 1000))
    assert not headroom.covers(Needs(4, 2, 3000))


@pytest.mark.slow
def test_the_highest_rate_of_a_slow_server(tmp_path: Path) -> None:
    """Eight streams at a time, 0.1 s a token, eight tokens: ten requests a second can be answered, whatever the machine does beside."""
    text = tmp_path / "text"
    text.write_text("\n".join(f"{chr(97 + i % 26)}{i:05d} #slow 100#{'.' * 30}" for i in range(400)))
    plan = Plan(Mix([Shape("slow", 1.0, 40, 8)]), Schedule("constant", 64, requests=40), text=text)
    with fake_server() as server:
        outcome = run_find_max(connect(server.url), LoadLimits(e2e_p95_ms=2500, within_ms=None), plan)
    assert outcome.passed, outcome.failures
    assert 4 < outcome.figures["max_rate"] < 33
    assert any(not probe["passed"] for probe in outcome.figures["probes"])


def test_a_server_that_answers_nothing_is_no_target(clean: Server) -> None:
    target = connect(clean.url)
    with pytest.raises(TargetError, match="no streamed answer"):
        run(Target(target.url, "another model", facts=target.facts), EASY, Plan(TINY))


def test_a_search_needs_an_open_loop(clean: Server) -> None:
    with pytest.raises(ConfigError, match="open loop"):
        run_find_max(connect(clean.url), EASY, Plan(TINY, Schedule(clients=2)))


def test_stopping_early(clean: Server) -> None:
    seen: list[Record] = []
    jobs = [Job(number, 0.1 * number, "tiny", f"{number} Hello, hello!", 4) for number in range(200)]
    records, summary = drive(
        Work(url=clean.url, headers={}, model="toy", dialect=Dialect(), jobs=jobs), lambda record: seen.append(record) or len(seen) == 3
    )
    assert len(records) == 3
    assert summary is None
