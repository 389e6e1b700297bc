"""The tier as a whole: against a server that is right, against faulty ones, and what becomes of the results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from servers import Server, fake_server

from pitstop.verify.functional import Case, Result, load_cases, results_of, run, run_cases
from pitstop.verify.functional.expect import Unmet
from pitstop.verify.functional.junit import write_junit
from pitstop.verify.functional.play import Declined, Player, TooShort
from pitstop.verify.outcome import Outcome
from pitstop.verify.slo import FunctionalLimits
from pitstop.verify.target import connect

STRICT = FunctionalLimits()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server() as server:
        yield server


def against(server: Server, only: str, limits: FunctionalLimits = STRICT) -> Outcome:
    cases = [case for case in load_cases(only) if case.needs is None]
    return run_cases(cases, connect(server.url), limits)


def failed(outcome: Outcome) -> list[str]:
    return [result.id for result in results_of(outcome) if result.state == "failed"]


def test_every_case_that_needs_no_model_passes(server: Server) -> None:
    seen: list[tuple[int, int, str]] = []
    cases = [case for case in load_cases() if case.needs is None]
    outcome = run_cases(cases, connect(server.url), STRICT, progress=lambda done, total, result: seen.append((done, total, result.id)))
    assert [(result.id, result.reason) for result in results_of(outcome) if result.state == "failed"] == []
    assert outcome.passed
    assert outcome.figures["passed"] >= 170
    unsupported = {result.id for result in results_of(outcome) if result.state == "unsupported"}
    assert unsupported <= {case.id for case in cases if case.optional}
    assert [done for done, _, _ in seen] == list(range(1, len(cases) + 1))
    assert [name for _, _, name in seen] != [case.id for case in cases]  # drawn from the seed
    assert [result.id for result in results_of(outcome)] == [case.id for case in cases]


@pytest.mark.parametrize(
    ("fault", "only", "caught"),
    [
        ("drop=3", "Unicode and streaming", {"stream-two-in-a-row", "stream-at-once"}),
        ("pairs", "Usage counts tokens", {"usage-length-is-max-tokens", "usage-length-streamed", "usage-logprobs-count-streamed"}),
        ("batch", "Neighbours", {"neighbours-each-own", "neighbours-streamed", "neighbours-thirty-two"}),
    ],
)
def test_a_planted_fault_is_caught(fault: str, only: str, caught: set[str]) -> None:
    with fake_server("--fault", fault) as server:
        outcome = against(server, only)
    assert caught <= set(failed(outcome))
    assert not outcome.passed


@pytest.mark.parametrize("fault", ["slow-first=50", "leak=1024"])
def test_faults_of_other_tiers_are_none_of_this_one(fault: str) -> None:
    with fake_server("--fault", fault) as server:
        assert failed(against(server, "API conformance")) == []


def test_limits_tolerate_as_many_failures_as_they_say(server: Server) -> None:
    cases = [case for case in load_cases("Sampling and seeds") if case.needs == "model"]  # a fake worker is no model
    target = connect(server.url)
    assert len(cases) >= 3
    strict = run_cases(cases, target, STRICT)
    assert len(strict.failures) == len(cases)
    assert strict.failures[0].name == f"functional.{cases[0].id}"
    assert strict.failures[0].reason.startswith("failed: ")
    assert not run_cases(cases, target, FunctionalLimits(failures=len(cases) - 1)).passed
    for allowed in (len(cases), None):
        tolerant = run_cases(cases, target, FunctionalLimits(failures=allowed))
        assert tolerant.passed
        assert tolerant.checks[0].reason.startswith("failed, tolerated: ")
    assert tolerant.figures["failed"] == len(cases)


def test_one_case_by_its_name(server: Server) -> None:
    outcome = run(connect(server.url), STRICT, only="api-models-list")
    assert [check.name for check in outcome.checks] == ["functional.api-models-list"]


def test_an_outcome_is_json_and_junit(server: Server, tmp_path: Path) -> None:
    from junitparser import JUnitXml

    outcome = against(server, "Extensions")
    again = msgspec.json.decode(msgspec.json.encode(outcome), type=Outcome)
    assert results_of(again) == results_of(outcome)
    bad = Result(id="x", theme="T", title="t", state="failed", seconds=1.0, reason="got \x00 \ud83d <&>")
    figures = {"cases": [*outcome.figures["cases"], msgspec.to_builtins(bad)]}
    write_junit(msgspec.structs.replace(outcome, figures=figures), tmp_path / "junit.xml")
    suites = list(JUnitXml.fromfile(str(tmp_path / "junit.xml")))
    assert [suite.name for suite in suites] == ["Extensions", "T"]
    assert (suites[0].tests, suites[0].failures, suites[1].failures) == (len(outcome.checks), 0, 1)
    assert suites[0].skipped == sum(result.state == "unsupported" for result in results_of(outcome)) > 0


# One case against a scripted server.


def case(steps: list[dict], **fields) -> Case:
    made = Case(id="x", title="t", what="w", why="y", steps=steps, **fields)
    made.check()
    return made


def play(made: Case, handler, context: int = 0) -> None:
    async def go() -> None:
        async with httpx.AsyncClient(base_url="http://test", transport=httpx.MockTransport(handler)) as client:
            await Player(client, made, "m", context).play()

    asyncio.run(go())


def echo(request: httpx.Request) -> httpx.Response:
    """An answer whose text is the request's body."""
    choice = {"index": 0, "text": request.content.decode(), "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "i", "object": "text_completion", "created": 1, "model": "m"}
    return httpx.Response(200, json={**head, "choices": [choice], "usage": usage})


def refuse(status: int, message: str):
    return lambda request: httpx.Response(status, json={"error": {"message": message, "type": "invalid_request_error"}})


def test_requests_are_composed_as_the_case_says() -> None:
    sent: list[dict] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return echo(request)

    steps = [
        {"name": "one", "complete": {"repeat": "w${n} ", "times": 3, "before": "<", "after": ">"}, "with": {"n": None}, "times": 2},
        {"complete": {"repeat": "x", "contexts": 2}, "without": ["max_tokens"], "with": {"seed": "${i}", "stop": "${one[1].text[0:2]}"}},
    ]
    play(case(steps), handler, context=5)
    first = {"model": "m", "prompt": "<w1 w2 w3 >", "temperature": 0, "max_tokens": 16, "n": None}
    assert sent == [first, first, {"model": "m", "prompt": "x" * 10, "temperature": 0, "seed": 0, "stop": '{"'}]


def test_raw_bodies_are_bytes() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path, request.content) == ("PUT", "/p", b"\xff m")
        assert request.headers["content-type"] == "text/x"
        return httpx.Response(200, json={})

    play(case([{"send": "PUT /p", "raw": "\xff ${model}", "headers": {"Content-Type": "text/x"}}]), handler)


def test_a_wrong_status_is_told_with_the_servers_words() -> None:
    with pytest.raises(Unmet, match=r"status: expected 200, got 400 with the error .*too odd"):
        play(case([{"complete": "x"}]), refuse(400, "too odd"))
    play(case([{"complete": "x", "expect": {"status": 400, "error.message": "too odd"}}]), refuse(400, "too odd"))


@pytest.mark.parametrize(
    ("status", "message", "raised"),
    [(400, "min_p: unknown field", Declined), (404, "no such route", Declined), (400, "bad request", Unmet), (500, "min_p", Unmet)],
)
def test_an_optional_feature_is_unsupported_only_when_it_is_refused_by_name(status: int, message: str, raised: type) -> None:
    made = case([{"complete": "x", "with": {"min_p": 1}}], optional=["min_p"])
    with pytest.raises(raised):
        play(made, refuse(status, message))
    with pytest.raises(Unmet):
        play(case([{"complete": "x"}]), refuse(400, "min_p: unknown field"))


def test_a_probe_that_is_not_met_means_unsupported() -> None:
    made = case([{"send": "POST /tokenize", "body": {}, "probe": True, "expect": {"body.count": 1}}], optional=["tokenize"])
    with pytest.raises(Declined, match=r"tokenize: body\.count"):
        play(made, lambda request: httpx.Response(200, json={"tokens": []}))


def test_a_context_that_is_too_short_skips() -> None:
    made = case([{"complete": "x"}], context=900)
    play(made, echo, context=900)
    with pytest.raises(TooShort):
        play(made, echo, context=899)
    with pytest.raises(TooShort):
        play(made, refuse(400, "exceeds the context"))
    with pytest.raises(Unmet):  # it says that it has room
        play(made, refuse(400, "exceeds the context"), context=2000)


def test_a_parallel_step_waits_for_all_and_leaves_nothing_behind() -> None:
    running = set()

    async def handler(request: httpx.Request) -> httpx.Response:
        number = json.loads(request.content)["prompt"]
        running.add(number)
        try:
            await asyncio.sleep(0 if number == 1 else 30)
        finally:
            running.discard(number)
        return refuse(500, "no")(request)

    with pytest.raises(Unmet, match="500"):
        play(case([{"parallel": [{"complete": 7}, {"complete": "${i}", "times": 4}]}]), handler)
    assert running == set()


def test_a_connection_that_breaks_is_a_failure() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("peer closed")

    with pytest.raises(Unmet, match="the connection broke before an answer: peer closed"):
        play(case([{"complete": "x"}]), handler)


def test_a_server_that_never_answers_costs_its_time_only(server: Server) -> None:
    made = case([{"complete": "#hold#"}], seconds=0.3)
    (result,) = results_of(run_cases([made], connect(server.url), STRICT))
    assert (result.state, result.reason) == ("failed", "expected to end within 0.3 s")
    assert result.seconds < 3
