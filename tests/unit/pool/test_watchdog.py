"""A worker that hangs is replaced, a busy one is never shot. The clock of most tests is an argument."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from pools import TOKENIZER, answer, ask, run, running_pool, until

from pitstop.engine import pace
from pitstop.engine.protocol import Ready, Stats, Step
from pitstop.errors import DeadlineExceeded, Quarantined, WorkerDied
from pitstop.kv.capacity import Capacity
from pitstop.pool.watchdog import FACTOR, TICK, Vitals, Watch
from pitstop.types import Request, SamplingParams


def watch(seconds_a_unit: float = 0.001, attended_cost: float = 0.0) -> Watch:
    return Watch(Ready(1, 8192, Capacity(1, 1, 1.0), 100, [], attended_cost, seconds_a_unit), prefill_chunk=512, floor=2.0)


def step(**fields) -> Step:
    return Step(1, [], Stats(), **fields)


def request(length: int) -> Request:
    return Request(id="a", prompt=[1] * length, params=SamplingParams())


def silent(subject: Watch, pulse: str = "busy") -> float:
    """Seconds until it is taken for hung, looked at in time."""
    for looks in range(1, 10**6):
        if subject.passed(TICK, lambda: pulse):
            return looks * TICK
    raise AssertionError


def test_an_ordinary_step_has_the_floor():
    subject = watch()
    subject.submitted(request(10))
    assert 2.0 < silent(subject) < 2.6
    subject.heard(step(work=17, seconds=0.005, ahead=17, taken=1))
    assert 2.0 < silent(subject) < 2.6


def test_a_step_that_takes_long_is_foreseen_from_what_the_worker_said():
    subject = watch()
    subject.heard(step(work=528, seconds=1.6, ahead=2000))
    subject.heard(step(work=528, seconds=1.6, ahead=2000))
    assert subject.limit == pytest.approx(FACTOR * 2000 * 1.6 / 528)
    subject.heard(step(work=2000, seconds=6.0, ahead=17))  # it spoke: only what comes now counts
    assert subject.limit == 2.0
    assert subject.silence == 0.0


def test_requests_that_the_worker_had_not_read_count_until_it_has():
    subject = watch(0.01, attended_cost=0.001)
    subject.submitted(request(100))
    subject.submitted(request(7000))
    whole = pace.work(512, 512 * 7000, 0.001)
    assert subject.limit == pytest.approx(FACTOR * 0.01 * whole)
    subject.heard(step(ahead=50.0, taken=1))  # it spoke before it read the second
    assert subject.limit == pytest.approx(FACTOR * 0.01 * (whole + 50))
    subject.heard(step(ahead=50.0, taken=2))
    assert subject.limit == pytest.approx(FACTOR * 0.01 * 50)


def test_a_slow_machine_is_known_to_be_slow_before_the_first_step():
    subject = watch(0.1)  # ten rows a second
    subject.submitted(request(7000))
    assert subject.limit > FACTOR * 512 * 0.1


def test_a_single_hiccup_is_no_measure_and_old_paces_are_forgotten():
    subject = watch()
    subject.heard(step(work=10, seconds=600.0, ahead=1000))
    assert subject.limit == pytest.approx(FACTOR * 1000 * 0.001)
    subject.heard(step(work=10, seconds=10.0, ahead=1000))
    assert subject.limit == pytest.approx(FACTOR * 1000)
    for _ in range(64):
        subject.heard(step(work=10, seconds=0.02, ahead=1000))
    assert subject.limit == pytest.approx(FACTOR * 1000 * 0.002)


def test_a_front_that_was_late_and_a_machine_that_slept_shoot_nobody():
    subject = watch()
    subject.submitted(request(10))
    assert not subject.passed(3600.0, lambda: "stopped")
    assert subject.silence == 2 * TICK
    assert not subject.passed(TICK, lambda: "stopped")


def test_a_worker_that_stands_still_has_less_time_and_a_stopped_one_just_the_floor():
    subject = watch()
    subject.heard(step(ahead=1000.0))  # a second
    assert silent(subject) == pytest.approx(10, abs=2 * TICK)
    subject.heard(step(ahead=1000.0))
    assert silent(subject, "still") == pytest.approx(4, abs=3 * TICK)
    subject.heard(step(ahead=1000.0))
    assert silent(subject, "stopped") == pytest.approx(2, abs=2 * TICK)
    subject.heard(step(ahead=1000.0))
    for _ in range(8):
        assert not subject.passed(TICK, lambda: "still")
    assert not subject.passed(TICK, lambda: "busy")
    assert silent(subject, "still") > 4, "it had moved: the time begins anew"


def test_the_pulse_of_a_process():
    busy, still = (subprocess.Popen([sys.executable, "-c", code]) for code in ("while True: pass", "import time; time.sleep(60)"))
    try:
        vitals = [Vitals(process.pid) for process in (busy, still)]

        def settled() -> bool:
            time.sleep(0.1)
            return [each.pulse() for each in vitals] == ["busy", "still"]

        end = time.monotonic() + 20
        while not settled():
            assert time.monotonic() < end
        for process in (busy, still):
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert [each.pulse() for each in vitals] == ["stopped", "stopped"]
    finally:
        for process in (busy, still):
            process.kill()
            process.wait()


@pytest.mark.parametrize(("prompt", "running"), [("count #slow 5#", True), ("#hold#", False)])
def test_a_stopped_worker_is_replaced_and_its_answers_go_on(prompt: str, running: bool):
    @run
    async def test():
        async with running_pool() as pool:
            stream = ask(pool, prompt + "#slow 5#", max_tokens=100)
            await until(lambda: pool.gauges().running == running and pool.members[0].stats.steps > 3)
            os.kill(pool.members[0].pid, signal.SIGSTOP)
            start = time.monotonic()
            await until(lambda: pool.state == "restarting")
            assert 1.7 < time.monotonic() - start < 4.0
            await until(lambda: pool.state == "ready")
            if running:
                assert (await answer(stream))[1] == "length"
            assert pool.gauges().restarts == 1
            stream.cancel()

    test()


@run
async def test_a_worker_that_was_stopped_while_idle_is_found_by_the_next_request():
    async with running_pool() as pool:
        os.kill(pool.members[0].pid, signal.SIGSTOP)
        start = time.monotonic()
        assert await answer(ask(pool, "#say late but whole#")) == ("late but whole", "stop")
        assert 1.7 < time.monotonic() - start < 5.0


@run
async def test_a_probe_of_a_stopped_worker_finds_it_too():
    async with running_pool() as pool:
        with pytest.raises(WorkerDied):
            await pool.probe(TOKENIZER.encode("#freeze 2#"), 5, 20.0)


@run
async def test_a_request_that_hangs_workers_is_quarantined_after_two():
    async with running_pool(hang_floor=0.5) as pool:
        with pytest.raises(Quarantined):
            await answer(ask(pool, "count #freeze 3#"))
        assert pool.gauges().restarts == 1  # the second replacement is on its way
        await until(lambda: pool.state == "ready")


@run
async def test_a_long_step_is_not_shot():
    async with running_pool(hang_floor=0.5) as pool:
        start = time.monotonic()
        long, short = ask(pool, "#long 2500##say worth it#"), ask(pool, "#slow 5##say fine#")
        assert await answer(long) == ("worth it", "stop")
        assert await answer(short) == ("fine", "stop")
        assert time.monotonic() - start > 2.5
        assert pool.gauges().restarts == 0


@run
async def test_a_long_step_whose_request_was_cancelled_is_not_shot_for_the_next_one():
    async with running_pool(hang_floor=0.5) as pool:
        long = ask(pool, "#long 2500##say worth it#")
        await until(lambda: pool.gauges().running == 1)
        long.cancel()
        assert await answer(ask(pool, "#say fine#")) == ("fine", "stop")
        assert pool.gauges().restarts == 0


@run
async def test_a_front_that_was_busy_itself_shoots_nobody():
    async with running_pool(hang_floor=0.5) as pool:
        stream = ask(pool, "count #slow 5#", max_tokens=60)
        await anext(stream)
        time.sleep(1.5)
        assert (await answer(stream))[1] == "length"
        assert pool.gauges().restarts == 0


@run
async def test_a_worker_in_the_background_has_the_time_that_who_asks_gives_it():
    async with running_pool(hang_floor=0.5) as pool:
        (first,) = pool.members
        second = pool.add_member(first.config, background=True)
        await second.ready()
        frozen = TOKENIZER.encode("#freeze 2#")
        with pytest.raises(DeadlineExceeded):
            await second.probe(frozen, 5, 2.0)
        pool.promote(second)
        with pytest.raises(WorkerDied):
            await second.probe(frozen, 5, 20.0)
