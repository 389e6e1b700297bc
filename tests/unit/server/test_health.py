"""Health in both directions: what is ill is called ill within seconds, and what is only busy is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pools import TOKENIZER, ask, running_pool
from servers import Server, children, fake_server, gone, open_stream, refused, until

from pitstop.config import HealthConfig
from pitstop.server.canary import ANSWER, PROMPT, Health, question

OFTEN = ("--health-interval", "0.2", "--health-timeout", "0.5")


def status(server: Server) -> int:
    return server.http.get("/healthz").status_code


def reasons(server: Server) -> str:
    return "; ".join(server.http.get("/healthz").json()["reasons"])


def probed(server: Server, outcome: str = "right") -> float:
    return server.metric(f'pitstop_health_probes_total{{outcome="{outcome}"}}')


def test_a_well_server_says_so_with_details():
    with fake_server(*OFTEN) as server:
        until(lambda: probed(server) >= 2, 5)
        report = server.http.get("/healthz")
        assert report.status_code == 200
        body = report.json()
        assert (body["status"], body["reasons"]) == ("ok", [])
        (worker,) = body["workers"]
        assert (worker["worker"], worker["life"], worker["complaint"], worker["misses"]) == (0, "ready", None, 0)
        assert 0 <= worker["checked_s"] < 5
        assert server.metric("pitstop_healthy") == 1
        assert server.metric("pitstop_requests_accepted_total") == 0  # a probe is no user's request


def test_startup_is_told_once_and_for_ever():
    with fake_server(worker=("--slow-start", "1"), ready=False) as server:
        until(lambda: server.http.get("/startupz").status_code == 503, 5)
        assert (status(server), reasons(server)) == (503, "the service is loading")
        until(lambda: server.http.get("/startupz").status_code == 200, 10)
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGKILL)
        until(lambda: server.http.get("/readyz").status_code == 503, 5)
        assert server.http.get("/startupz").status_code == 200


def test_a_wrong_answer_is_found_and_forgotten_at_once_when_it_is_right_again(tmp_path: Path):
    poison = tmp_path / "poison"
    with fake_server(*OFTEN, worker=("--poison", str(poison))) as server:
        until(lambda: probed(server) >= 1, 5)
        assert status(server) == 200
        poison.touch()
        start = time.monotonic()
        until(lambda: status(server) == 503, 5)
        assert time.monotonic() - start < 3
        until(lambda: "wrong answer" in reasons(server), 5)  # so says the next worker, which is as wrong
        assert server.metric("pitstop_healthy") == 0
        assert probed(server, "wrong") >= 2  # hysteresis: one is not enough
        poison.unlink()
        until(lambda: status(server) == 200, 2)


def test_a_wrong_answer_is_found_under_load_too(tmp_path: Path):
    poison = tmp_path / "poison"
    with fake_server(*OFTEN, worker=("--poison", str(poison))) as server:
        until(lambda: probed(server) >= 1, 5)
        with open_stream(server, "count #slow 20#"):
            before = probed(server)
            until(lambda: probed(server) >= before + 2, 5)
            assert status(server) == 200
            poison.touch()
            until(lambda: "wrong answer" in reasons(server), 5)


@pytest.mark.parametrize("load", [False, True])
def test_a_worker_that_computes_wrongly_is_replaced_and_an_answer_with_a_wrong_part_ends_with_an_error(tmp_path: Path, load: bool):
    poison = tmp_path / "poison"
    restarts = "pitstop_worker_restarts_total"
    with fake_server(*OFTEN, worker=("--poison", str(poison))) as server, ThreadPoolExecutor(2) as threads:
        until(lambda: probed(server) >= 1, 5)
        (worker,) = children(server.process.pid)
        if load:
            begun = threads.submit(server.complete, "count #slow 20#", max_tokens=400, timeout=20)
            waiting = threads.submit(server.complete, "#hold#", timeout=3)
            until(lambda: server.metric("pitstop_requests_running") == 1, 5)
        poison.touch()
        until(lambda: gone(worker), 5)
        if load:
            assert "already sent is wrong" in refused(begun.result(), 503, code="unavailable")
            refused(waiting.result(), 504)  # it had no token yet, and went on waiting for another worker
        until(lambda: server.metric(restarts) == 1, 5)
        until(lambda: "wrong answer" in reasons(server), 5)
        wrong = probed(server, "wrong")
        until(lambda: probed(server, "wrong") >= wrong + 2, 10)  # the new one is as wrong: another would not help
        assert server.metric(restarts) == 1
        assert status(server) == 503
        poison.unlink()
        until(lambda: status(server) == 200, 5)
        assert server.complete("#say well#").json()["choices"][0]["text"] == "well"


def test_what_a_worker_began_that_computes_wrongly_goes_on_when_it_is_right_so_far(tmp_path: Path):
    poison = tmp_path / "poison"
    with fake_server(*OFTEN, worker=("--poison", str(poison))) as server, ThreadPoolExecutor(1) as threads:
        until(lambda: probed(server) >= 1, 5)
        begun = threads.submit(server.complete, "count #slow 10#", max_tokens=400, logprobs=2, timeout=60)
        until(lambda: server.metric("pitstop_requests_running") == 1, 5)
        poison.write_text("probes")
        until(lambda: server.metric("pitstop_worker_restarts_total") == 1, 10)
        choice = begun.result().json()["choices"][0]
    assert choice["text"] == "".join(f"{number} " for number in range(200))[:400]
    assert len(choice["logprobs"]["tokens"]) == 400


def test_a_dead_worker_is_ill_until_the_next_one_is_there(tmp_path: Path):
    obstacle = tmp_path / "obstacle"
    with fake_server(*OFTEN, worker=("--die-if", str(obstacle))) as server:
        until(lambda: probed(server) >= 1, 5)
        obstacle.touch()
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGKILL)
        until(lambda: status(server) == 503, 2)
        until(lambda: re.search(r"restarting; worker 0: .*SIGKILL; deaths in a row: [1-9]", reasons(server)), 5)
        obstacle.unlink()
        until(lambda: status(server) == 200, 10)


@pytest.mark.parametrize("load", [False, True])
def test_a_stopped_worker_is_noticed_idle_and_under_load(load: bool):
    with fake_server(*OFTEN) as server, ThreadPoolExecutor(1) as threads:
        until(lambda: probed(server) >= 1, 5)
        (worker,) = children(server.process.pid)
        if load:
            threads.submit(server.complete, "count #slow 20#", max_tokens=200, timeout=20)
            until(lambda: server.metric("pitstop_requests_running") == 1, 5)
        os.kill(worker, signal.SIGSTOP)
        start = time.monotonic()
        try:
            until(lambda: status(server) == 503, 8)
            assert time.monotonic() - start < 5
        finally:
            with contextlib.suppress(ProcessLookupError):  # the watchdog was first
                os.kill(worker, signal.SIGKILL)
        until(lambda: status(server) == 200, 15)


def test_the_endpoint_answers_at_once_whatever_the_engine_does():
    with fake_server(*OFTEN) as server:
        until(lambda: probed(server) >= 1, 5)
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGSTOP)
        try:
            for _ in range(20):
                start = time.monotonic()
                server.http.get("/healthz")
                assert time.monotonic() - start < 0.25
        finally:
            os.kill(worker, signal.SIGCONT)


def test_fresh_waits_for_a_new_look_within_bounds(tmp_path: Path):
    poison = tmp_path / "poison"
    with fake_server("--health-interval", "600", worker=("--poison", str(poison))) as server:
        until(lambda: probed(server) == 1, 5)
        assert server.http.get("/healthz?fresh=1").status_code == 200
        assert probed(server) == 2
        with ThreadPoolExecutor(8) as threads:  # who asks at the same time shares the answer
            assert {answer.status_code for answer in threads.map(server.http.get, ["/healthz?fresh=1"] * 8)} == {200}
        assert probed(server) <= 4
        poison.touch()
        assert status(server) == 200  # nobody has looked
        server.http.get("/healthz?fresh=1")
        until(lambda: status(server) == 503, 5)


def test_readiness_may_depend_on_the_queue():
    with fake_server("--max-waiting", "1", "--unready-when-full") as server, ThreadPoolExecutor(1) as threads:
        assert server.http.get("/readyz").status_code == 200
        held = threads.submit(server.complete, "#hold#", timeout=1)
        until(lambda: server.http.get("/readyz").status_code == 503, 2)
        assert server.http.get("/readyz").json() == {"status": "full"}
        assert held.result().status_code == 504
        assert server.http.get("/readyz").status_code == 200


def test_a_worker_that_is_busy_for_longer_than_a_probe_may_take_is_not_called_ill():
    """It steps, but the probe's turn does not come: as with long prompts before it."""

    async def check() -> None:
        async with running_pool() as pool:
            health = Health(HealthConfig(interval=0.05, retry=0.05, timeout=0.2, misses=1))
            task = asyncio.create_task(health.run(pool))
            while not health.outcomes["right"]:
                await asyncio.sleep(0.01)
            (member,) = pool.members

            async def starved(*arguments: object) -> list[int]:
                from pitstop.errors import DeadlineExceeded

                await asyncio.sleep(0.2)
                raise DeadlineExceeded("late")

            member.probe = starved
            with ask(pool, "count #slow 10#", max_tokens=400) as stream:
                await anext(stream)
                for _ in range(8):
                    await asyncio.sleep(0.1)
                    assert health.report(pool.state)[0], health.report(pool.state)
            await asyncio.sleep(0.6)  # the same, and no other work: then it is ill
            assert not health.report(pool.state)[0]
            task.cancel()

    asyncio.run(asyncio.wait_for(check(), 30))


def test_the_question_has_its_length_in_any_context():
    assert len(question(TOKENIZER, 2048)) == PROMPT
    assert len(question(TOKENIZER, 64)) == 16
    assert PROMPT + ANSWER == 128
