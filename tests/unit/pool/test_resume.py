"""Workers die, answers do not: what runs or waits goes on in another worker and ends as if nothing had been."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pools import answer, ask, requests, run, running_pool, until

from pitstop.errors import DeadlineExceeded, Quarantined, Unavailable, WorkerDied
from pitstop.pool import Pool
from pitstop.pool.stream import Delta

COUNT = "".join(f"{number} " for number in range(200))


def kill(pool: Pool, number: int = signal.SIGKILL) -> None:
    os.kill(pool.members[0].pid, number)


async def deltas(stream) -> list[tuple[int, Delta]]:
    return [(choice, delta) async for choice, delta in stream]


def folded(parts: list[tuple[int, Delta]], choice: int = 0) -> tuple:
    """All that a client learns of one choice, joined."""
    mine = [delta for index, delta in parts if index == choice]
    return (
        "".join(delta.text for delta in mine),
        [token for delta in mine for token in delta.tokens],
        [score for delta in mine for score in delta.scores or []],
        [score for delta in mine for score in delta.prompt_scores or []],
        [delta.finish for delta in mine if delta.finish],
        mine[-1].cached_tokens,
    )


PROMPTS = [
    ("count #slow 2#", {"max_tokens": 150, "logprobs": 2}),
    ("#slow 2##say 你好, 🙂 and more of it, again 你好, 🙂!#", {"logprobs": 0, "prompt_logprobs": 1}),
    ("count #slow 2#", {"max_tokens": 300, "stop": ("37 38", "999")}),
    ("count #slow 2##burst 7#", {"max_tokens": 300, "choices": 3, "logprobs": 1}),
    ("#slow 2##say abcabcabcabcabcabcabc#", {"stop": ("bc",), "min_tokens": 17}),
]


def condemn(pool: Pool) -> None:
    pool.members[0].condemn()


@run
async def test_sigkill_at_any_moment_changes_no_answer():
    await changes_no_answer(kill)


@run
async def test_a_worker_found_to_compute_wrongly_changes_no_answer_that_was_right():
    await changes_no_answer(condemn)


async def changes_no_answer(harm: Callable[[Pool], None]) -> None:
    async with running_pool() as pool:
        undisturbed = [await deltas(ask(pool, prompt, **options)) for prompt, options in PROMPTS]
    for tokens in (0, 1, 5, 20):
        async with running_pool() as pool:
            streams = [ask(pool, prompt, **options) for prompt, options in PROMPTS]
            tasks = [asyncio.create_task(deltas(stream)) for stream in streams]
            await until(lambda pool=pool, tokens=tokens: sum(len(e.emitted) for e in pool.journal.entries.values()) >= tokens)
            harm(pool)
            disturbed = [await task for task in tasks]
            for before, after, (_, options) in zip(undisturbed, disturbed, PROMPTS, strict=True):
                for choice in range(options.get("choices", 1)):
                    assert folded(after, choice) == folded(before, choice)
            gauges = pool.gauges()
            assert (gauges.restarts, sum(gauges.finished.values()), gauges.finished.get("error")) == (1, 7, None)
            assert 0 < gauges.resumed <= 7


class Pauses:
    """An Observer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def first_token(self, seconds: float) -> None:
        self.told.append(("first", seconds))

    def next_token(self, seconds: float) -> None: ...

    def finished(self, reason: str, seconds: float) -> None:
        self.told.append((reason, seconds))

    def resumed(self, seconds: float) -> None:
        self.told.append(("resumed", seconds))


@run
async def test_a_pause_is_told_once_and_the_first_token_too():
    async with running_pool() as pool:
        pool._observer = observer = Pauses()
        stream = ask(pool, "count #slow 5#", max_tokens=60)
        await anext(stream)
        kill(pool)
        await until(lambda: pool.state == "restarting")
        start = time.monotonic()
        assert pool.last_step_age() is None
        assert pool.gauges().queued == 1
        await answer(stream)
        assert [what for what, _ in observer.told] == ["first", "resumed", "length"]
        assert 0.05 <= observer.told[1][1] <= time.monotonic() - start + 0.1


@run
async def test_new_requests_are_refused_meanwhile_but_one_at_the_door_waits():
    async with running_pool() as pool:
        with pool.enter() as place:
            kill(pool)
            await until(lambda: pool.state == "restarting")
            with pytest.raises(Unavailable):
                pool.enter()
            stream = place.submit(requests("#say it waited#"))
        assert pool.gauges().queued == 1
        assert await answer(stream) == ("it waited", "stop")
        assert pool.gauges().resumed == 0  # nothing of it was lost
        assert pool.gauges().restarts == 1


@run
async def test_who_waits_for_a_worker_can_go_away_or_run_out_of_time():
    async with running_pool("--slow-start", "1") as pool:
        leaving, late, staying = (ask(pool, "count #slow 5#", max_tokens=50, timeout=limit) for limit in (None, 0.4, 20.0))
        await anext(leaving)
        kill(pool)
        await until(lambda: pool.state == "restarting")
        leaving.cancel()
        assert pool.gauges().finished == {"cancelled": 1}
        with pytest.raises(DeadlineExceeded):
            await answer(late)
        assert pool.state == "restarting"  # at its time, not when a worker came
        text, finish = await answer(staying)
        assert (text, finish) == (COUNT[:50], "length")


@run
async def test_who_crashes_workers_is_quarantined_after_two_and_who_only_waited_is_not():
    async with running_pool() as pool:
        waiting = ask(pool, "#hold##upto 2#", timeout=20)
        bad = ask(pool, "count #crash 3#")
        name = bad.ids[0]
        with pytest.raises(Quarantined, match=f"2 times while they ran {name}"):
            await answer(bad)
        await until(lambda: pool.state == "ready")
        assert pool.gauges().restarts == 2
        assert pool.gauges().finished == {"error": 1}
        assert pool.gauges().queued == 1
        assert await answer(ask(pool, "#say fine#")) == ("fine", "stop")
        waiting.cancel()


@run
async def test_an_answer_whose_workers_are_killed_has_three_attempts():
    async with running_pool() as pool:
        assert await answer(ask(pool, "count #die 3##upto 2#", max_tokens=10)) == (COUNT[:10], "length")
    async with running_pool() as pool:
        with pytest.raises(WorkerDied, match="3 workers that ran"):
            await answer(ask(pool, "count #die 3##upto 3#", choices=2))
        assert pool.gauges().finished == {"error": 2}
        await until(lambda: pool.state == "ready")


@run
async def test_neighbours_of_one_that_crashes_workers_go_on_and_are_not_punished():
    async with running_pool() as pool:
        bad = ask(pool, "count #slow 2##crash 5#", max_tokens=20)
        good = [ask(pool, "count #slow 2#", max_tokens=80) for _ in range(5)]
        ends = [asyncio.create_task(answer(stream)) for stream in good]
        with pytest.raises(Quarantined):
            await answer(bad)
        assert [await end for end in ends] == [(COUNT[:80], "length")] * 5
        assert pool.gauges().restarts == 2


@run
async def test_two_that_crash_workers_are_found_one_after_the_other():
    async with running_pool() as pool:
        bad = [ask(pool, f"count #slow 2##crash {tokens}#", max_tokens=20) for tokens in (5, 6)]
        good = [asyncio.create_task(answer(ask(pool, "count #slow 2#", max_tokens=80))) for _ in range(2)]
        for stream in bad:
            with pytest.raises(Quarantined):
                await answer(stream)
        assert [await end for end in good] == [(COUNT[:80], "length")] * 2


@run
async def test_a_suspect_that_goes_away_lets_the_next_one_try():
    async with running_pool() as pool:
        suspects = [ask(pool, "count #slow 2##crash 5##upto 1#", max_tokens=20), ask(pool, "count #slow 2#", max_tokens=20)]
        await until(lambda: pool.state == "restarting")
        suspects[0].cancel()
        assert await answer(suspects[1]) == (COUNT[:20], "length")


def test_a_suspect_goes_on_beside_a_worker_that_cannot_start_again(tmp_path: Path):
    """The first of two suspects seems to crash the other worker, too, and goes; the second does not wait for that one's return."""

    @run
    async def test():
        async with running_pool("--die-if", str(tmp_path / "lock"), workers=2) as pool:
            first, second = pool.members
            second.routed = False
            streams = [ask(pool, "count #slow 200#", max_tokens=60), ask(pool, "count #slow 5#", max_tokens=100)]
            await until(lambda: all(entry.emitted for entry in pool.journal.entries.values()))
            second.routed = True
            os.kill(first.pid, signal.SIGABRT)
            await until(lambda: second.entries and not first.up)
            await until(lambda: first.up)
            (tmp_path / "lock").touch()
            os.kill(second.pid, signal.SIGABRT)
            with pytest.raises(Quarantined):
                await answer(streams[0])
            assert await asyncio.wait_for(answer(streams[1]), 10) == (COUNT[:100], "length")

    test()


@run
async def test_a_drain_waits_for_answers_whose_worker_dies():
    async with running_pool() as pool:
        stream = ask(pool, "count #slow 5#", max_tokens=50)
        await anext(stream)
        drain = asyncio.create_task(pool.drain())
        await asyncio.sleep(0)
        kill(pool)
        text, finish = await answer(stream)
        assert (len(text), finish) == (49, "length")
        await drain


@run
async def test_a_stop_in_a_hurry_resumes_nothing():
    async with running_pool() as pool:
        stream = ask(pool, "count #slow 5#", max_tokens=400)
        await anext(stream)
        pool.kill()
        with pytest.raises(Unavailable, match="server stopped"):
            await answer(stream)
        assert pool.state == "stopped"


@run
async def test_a_stop_in_a_hurry_does_not_wait_for_a_worker_that_is_not_there():
    async with running_pool(stop_timeout=60) as pool:
        stream = ask(pool, "count #slow 5#", max_tokens=400)
        await anext(stream)
        pool.members[0].kill()
        await until(lambda: pool.state == "restarting")
        drain = asyncio.create_task(pool.drain())
        await asyncio.sleep(0)
        pool.kill()
        await asyncio.wait_for(drain, 5)
        with pytest.raises(Unavailable, match="server stopped"):
            await answer(stream)


@run
async def test_an_answer_goes_on_by_the_arithmetic_that_began_it():
    from dataclasses import replace

    async with running_pool() as pool:
        (old,) = pool.members
        other = pool.add_member(replace(old.config, activations="int8"))
        same = pool.add_member(replace(old.config, threads=1))
        await asyncio.gather(other.ready(), same.ready())
        stream = ask(pool, "count #slow 5#", max_tokens=80)
        await anext(stream)
        pool.promote(other)
        pool.retire(old)
        kill(pool)
        text, finish = await answer(stream)  # `other` was ready at once, but the old one was waited for
        assert (len(text), finish) == (79, "length")
        assert other.stats.generated_tokens == 0
        await old.gone.wait()
        pool.promote(same)
        stream = ask(pool, "count #slow 5#", max_tokens=80)
        await anext(stream)
        pool.retire(other)
        os.kill(other.pid, signal.SIGKILL)
        assert (await answer(stream))[1] == "length"
        assert same.stats.generated_tokens == 0


@run
async def test_an_answer_goes_to_an_equal_member_at_once():
    async with running_pool() as pool:
        (old,) = pool.members
        twin = pool.add_member(old.config)
        await twin.ready()
        stream = ask(pool, "count #slow 5#", max_tokens=80)
        await anext(stream)
        pool.promote(twin)
        kill(pool)
        text, finish = await answer(stream)
        assert (len(text), finish) == (79, "length")
        assert twin.stats.generated_tokens > 0
        assert pool.state == "ready"
