"""Upgrades before fake workers: what fails anywhere leaves everything as it was, and nobody's answer suffers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from fake_worker import KV_MEMORY
from pools import HUGE, TOKENIZER, answer, ask, run, running_pool, toy_model, until

from pitstop.engine.protocol import PROTOCOL
from pitstop.errors import Unavailable
from pitstop.pool import Pool, Upgrade, Upgrades, Wish
from pitstop.pool import gate as gate_module
from pitstop.pool import upgrade as upgrade_module
from pitstop.pool.loan import Loan
from pitstop.pool.memory import RESERVE, Need, free_memory

COUNT = "".join(f"{number} " for number in range(200))


async def upgraded(pool: Pool, wait: bool = True, **wish) -> Upgrade:
    upgrade = Upgrades(pool, toy_model).begin(Wish(**wish))
    if wait:
        await upgrade.wait()
    return upgrade


class Load:
    """Clients that ask again and again, a slow stream and a short answer each; every answer must be complete."""

    def __init__(self, pool: Pool) -> None:
        self.answers = 0
        self._pool = pool
        self._stop = False
        self._tasks = [asyncio.create_task(self._client()) for _ in range(4)]

    async def _client(self) -> None:
        while not self._stop:
            assert await answer(ask(self._pool, "count #slow 2#", max_tokens=60)) == (COUNT[:60], "length")
            assert await answer(ask(self._pool, "#say short#")) == ("short", "stop")
            self.answers += 2
            await asyncio.sleep(0.02)  # what is started beside them shares their core

    async def stop(self) -> None:
        self._stop = True
        for task in self._tasks:
            await task


@asynccontextmanager
async def loaded(pool: Pool):
    load = Load(pool)
    yield load
    await load.stop()
    gauges = pool.gauges()
    assert set(gauges.finished) == {"stop", "length"}
    assert gauges.accepted == sum(gauges.finished.values())
    assert sum(gauges.rejected.values()) == 0


@run
async def test_requests_before_during_and_after_all_complete_and_the_old_worker_leaves():
    async with running_pool() as pool, loaded(pool) as load:
        (old,) = pool.members
        pid = old.pid
        await until(lambda: load.answers >= 8)
        upgrade = await upgraded(pool, threads=1)
        assert (upgrade.state, upgrade.reason) == ("done", "")
        (new,) = pool.members
        assert (new.config.threads, new.routed, old.gone.is_set()) == (1, True, True)
        assert new.config.kv.memory == KV_MEMORY  # what the old one had
        assert psutil.Process(new.pid).cmdline()[-1] == "background"  # and it was called forward, or it would have refused its requests
        report = upgrade.report()
        assert report["gate"] == {"smoke_tokens": 64, "canaries_equal": 3, "mean_kl": None, "same_top": None, "positions": None}
        assert [phase["state"] for phase in report["phases"]] == ["checking", "loading", "gating", "warming", "switching", "retiring"]
        assert report["workers"] == {"replaced": 1, "of": 1}
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        before = load.answers
        await until(lambda: load.answers >= before + 8)


@run
async def test_a_long_answer_ends_where_it_began_while_new_ones_come_from_the_new_worker():
    async with running_pool() as pool:
        (old,) = pool.members
        stream = ask(pool, "count #slow 30#", max_tokens=150)
        upgrade = await upgraded(pool, wait=False, model="toy2")
        await until(lambda: upgrade.state == "retiring")
        assert await answer(ask(pool, "#say new#")) == ("new", "stop")
        assert list(old.entries) == stream.ids
        assert upgrade.report()["requests_left"] == 1
        assert not old.gone.is_set()
        assert await answer(stream) == (COUNT[:150], "length")
        await upgrade.wait()
        assert (upgrade.state, pool.members[0].config.model) == ("done", "toy2")


@run
async def test_other_arithmetic_passes_below_the_limit_of_divergence():
    async with running_pool() as pool:
        upgrade = await upgraded(pool, model="toy --perturb 0.01", kv="int8")
        assert (upgrade.state, upgrade.reason) == ("done", "")
        figures = upgrade.report()["gate"]
        assert 0 < figures["mean_kl"] < 0.01
        assert (figures["positions"], figures["canaries_equal"]) == (3 * 128, None)
        assert pool.members[0].config.kv.codec == "int8"


NOT_LOADED = [
    ({"model": "broken"}, "checking: broken: the file is truncated"),
    ({"model": "huge"}, "checking: a second worker does not fit beside the first, .* MiB are missing: .* MiB weights"),
    ({"kv_memory": HUGE}, "checking: a second worker does not fit beside the first"),
    ({"model": "toy --fail 'no such tensor'"}, "loading: no such tensor"),
    ({"model": "toy --die-at-start"}, "loading: the worker exited with status 3 before it was ready"),
    ({"model": "toy --slow-start 60"}, "loading: the worker was not ready within"),
    ({"model": "toy --protocol 99"}, f"loading: the worker of version 9.9 speaks protocol 99 and the server {PROTOCOL}"),
    ({"model": "toy --context 100"}, "loading: the new worker's context of 100 tokens is shorter than the 512 of now"),
    ({"python": "/nonexistent"}, "loading: the worker cannot be started"),
    ({"python": "/bin/false"}, "loading: the worker exited with status 1 before it was ready"),
]
NOT_PASSED = [
    ({"model": "toy --wrong"}, "gating: the new worker's arithmetic is the same and its answer is not: they part at token 0"),
    ({"model": "toy --random"}, "gating: the new worker answers the same question differently"),
    ({"model": "toy2 --perturb 0.5"}, r"gating: the new worker is 0\.\d+ nats from the present one .*384 positions.*0.01 is the limit"),
    ({"model": "toy --perturb 0.01", "kv": "int8", "max_kl": 1e-9}, "gating: the new worker is .* 1e-09 is the limit"),
    ({"model": "toy --perturb nan"}, "gating: the new worker's logits are not finite"),
    ({"model": "toy --die-after 0"}, r"gating: worker \d was killed by SIGKILL"),
    ({"model": "toy --die-after 4"}, r"gating: worker \d was killed by SIGKILL"),
    ({"model": "toy --deaf"}, r"gating: worker \d did not answer a probe within 1 s"),
]


@pytest.mark.parametrize(("wish", "reason"), [*NOT_LOADED, *NOT_PASSED])
def test_what_fails_rolls_back_and_nobody_notices(monkeypatch: pytest.MonkeyPatch, wish: dict, reason: str):
    if "--deaf" in wish.get("model", ""):
        monkeypatch.setattr(gate_module, "TIMEOUT", 1.0)
    patience = 3 if "--slow-start" in wish.get("model", "") else 30

    @run
    async def test():
        async with running_pool(start_timeout=patience) as pool, loaded(pool) as load:
            members, facts, texts = list(pool.members), pool.facts, pool.texts
            upgrade = await upgraded(pool, **wish)
            assert upgrade.state == "rolled_back"
            assert re.match(reason, upgrade.reason), upgrade.reason
            assert (pool.members, pool.facts, pool.texts) == (members, facts, texts)
            assert pool.gauges().restarts == 0
            before = load.answers
            await until(lambda: load.answers >= before + 4)
            again = await upgraded(pool, threads=1)  # a sound one passes afterwards
            assert (again.state, again.reason) == ("done", "")

    test()


@run
async def test_hot_prompts_are_replayed_the_latest_last_and_a_death_meanwhile_changes_nothing():
    async with running_pool() as pool:
        for letter in "xy":
            await answer(ask(pool, letter * 300))
        upgrade = await upgraded(pool, model="toy --die-after 6")  # two of the smoke, a score and three canaries come before
        assert upgrade.state == "rolled_back"
        assert re.match(r"warming: worker 1 was killed by SIGKILL", upgrade.reason)
        upgrade = await upgraded(pool, model="toy --die-after 8", warm_time=0.5)
        assert (upgrade.state, upgrade.report()["warmed"]) == ("done", {"prompts": 2, "tokens": 512})
        (new,) = pool.members
        assert new.stats.prompt_tokens == 512
        assert pool.hot_prompts(1) == [("", TOKENIZER.encode("y" * 256))]


@run
async def test_replaying_is_bounded_in_time():
    async with running_pool() as pool:
        await answer(ask(pool, "x" * 256 + "#hold"))
        await answer(ask(pool, "#say a#" + "y" * 249))
        upgrade = await upgraded(pool, warm_time=0.0)
        assert (upgrade.state, upgrade.report()["warmed"]) == ("done", {"prompts": 0, "tokens": 0})


@pytest.mark.parametrize(("phase", "model"), [("loading", "toy --slow-start 60"), ("gating", "toy --deaf")])
def test_cancelled_before_the_switch_it_leaves_everything_as_it_was(phase: str, model: str):
    @run
    async def test():
        async with running_pool() as pool, loaded(pool):
            (old,) = pool.members
            upgrade = await upgraded(pool, wait=False, model=model)
            await until(lambda: upgrade.state == phase and len(pool.worker_pids()) == 2)
            (pid,) = set(pool.worker_pids()) - {old.pid}
            await upgrade.stop()
            assert (upgrade.state, upgrade.reason, upgrade.switched) == ("cancelled", "it was cancelled", False)
            assert pool.members == [old]
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    test()


def test_cancelled_in_the_moment_in_which_what_it_waits_for_comes(monkeypatch: pytest.MonkeyPatch):
    """The worker's answer and the cancellation reach the upgrade in one turn of the event loop: neither hides the other."""

    @run
    async def test():
        async with running_pool() as pool:
            upgrade, stops = await upgraded(pool, wait=False), []

            def take(loan: Loan, lent: int, honest=Loan.take) -> None:
                honest(loan, lent)
                if lent >= 0 and not stops:
                    stops.append(asyncio.create_task(upgrade.stop()))

            monkeypatch.setattr(Loan, "take", take)
            await upgrade.wait()
            assert (upgrade.state, len(pool.members), len(stops)) == ("cancelled", 1, 1)

    test()


@run
async def test_the_server_stops_while_it_is_upgraded():
    async with running_pool() as pool:
        upgrades = Upgrades(pool, toy_model)
        upgrade = upgrades.begin(Wish(model="toy --slow-start 60"))
        await until(lambda: upgrade.state == "loading")
        await upgrades.close()
        await pool.drain()
        assert (upgrade.state, len(pool.members)) == ("cancelled", 1)
        with pytest.raises(Unavailable):
            upgrades.begin(Wish())


@run
async def test_the_new_config_outlives_its_worker():
    async with running_pool() as pool:
        assert (await upgraded(pool, model="toy2 --perturb 0.01", threads=1)).state == "done"
        (member,) = pool.members
        pid = member.pid
        os.kill(pid, signal.SIGKILL)
        assert await answer(ask(pool, "#say again#")) == ("again", "stop")
        assert (member.pid != pid, member.config.threads, pool.facts.weights, pool.gauges().restarts) == (True, 1, "toy2", 1)


@run
async def test_the_old_worker_dies_after_the_switch_and_its_answer_still_ends_by_its_arithmetic():
    async with running_pool() as pool:
        (old,) = pool.members
        stream = ask(pool, "count #slow 20#", max_tokens=150)
        await anext(stream)
        upgrade = await upgraded(pool, wait=False, model="toy2", kv="int8")
        await until(lambda: upgrade.state == "retiring")
        os.kill(old.pid, signal.SIGKILL)
        assert (await answer(stream))[1] == "length"
        await upgrade.wait()
        assert (upgrade.state, old.restarts) == ("done", 1)


@run
async def test_the_old_worker_crashes_after_the_switch_and_what_it_ran_ends_at_the_new_one():
    async with running_pool() as pool:
        (old,) = pool.members
        streams = [ask(pool, "count #slow 150#", max_tokens=20), ask(pool, "count #slow 10#", max_tokens=200)]
        for stream in streams:
            await anext(stream)
        upgrade = await upgraded(pool, wait=False)
        await until(lambda: upgrade.state == "retiring")
        os.kill(old.pid, signal.SIGABRT)
        assert [(await answer(stream))[1] for stream in streams] == ["length", "length"]
        await asyncio.wait_for(upgrade.wait(), 10)
        assert (upgrade.state, old in pool.members) == ("done", False)


@run
async def test_another_model_brings_its_own_words_and_requests_in_flight_keep_theirs():
    async with running_pool() as pool:
        (old,) = pool.members
        before = pool.served
        stream = ask(pool, "count #slow 5#", max_tokens=150)
        with pool.enter() as place:
            upgrade = await upgraded(pool, wait=False, model="alien")
            await until(lambda: upgrade.state == "retiring")
            assert upgrade.report()["gate"] == {
                "smoke_tokens": 64,
                "canaries_equal": None,
                "mean_kl": None,
                "same_top": None,
                "positions": None,
            }
            assert not pool.serves(before)
            assert (pool.texts.digest, pool.served.texts) == ("alien", pool.texts)
            place.widen(1)
        os.kill(old.pid, signal.SIGKILL)  # no token is left, and still it is the old model's to answer
        assert await answer(stream) == (COUNT[:150], "length")
        await upgrade.wait()
        assert await answer(ask(pool, "#say alien#")) == ("alien", "stop")
        assert old.restarts == 1


@run
async def test_what_waits_with_the_old_words_waits_for_the_old_worker():
    async with running_pool() as pool:
        (old,) = pool.members
        waiting = ask(pool, "#hold##upto 0##die 9#", timeout=3)
        upgrade = await upgraded(pool, wait=False, model="alien")
        await until(lambda: upgrade.state == "retiring")
        os.kill(old.pid, signal.SIGKILL)
        await until(lambda: old.restarts == 1 and old.up)
        assert list(old.entries) == waiting.ids
        waiting.cancel()
        await upgrade.wait()
        assert upgrade.state == "done"


@run
async def test_what_waits_for_a_worker_that_is_dead_goes_to_the_new_one():
    async with running_pool(restart_backoff=20) as pool:
        (old,) = pool.members
        waiting = ask(pool, "#hold##say late#")
        new = pool.add_member(old.config)
        await new.ready()
        os.kill(old.pid, signal.SIGKILL)
        await until(lambda: not old.up)
        pool.promote(new, replacing=old)
        pool.retire(old)
        assert list(new.entries) == waiting.ids
        waiting.cancel()


@run
async def test_several_workers_are_replaced_one_after_the_other():
    async with running_pool(workers=2) as pool, loaded(pool):
        first, second = pool.members
        positions = {first.position, second.position}
        upgrade = await upgraded(pool, wait=False, threads=1)
        await until(lambda: upgrade.report()["workers"]["replaced"] == 1)
        assert second.routed
        await upgrade.wait()
        assert (upgrade.state, upgrade.report()["workers"]) == ("done", {"replaced": 2, "of": 2})
        assert [member.config.threads for member in pool.members] == [1, 1]
        assert {member.position for member in pool.members} == positions


def test_when_the_second_of_two_fails_the_first_goes_back_too(tmp_path: Path):
    dead = tmp_path / "dead"

    @run
    async def test():
        async with running_pool(workers=2) as pool, loaded(pool):
            upgrade = await upgraded(pool, wait=False, model=f"toy --die-if {dead}")
            await until(lambda: upgrade.switched)
            dead.touch()
            await upgrade.wait()
            assert (upgrade.state, upgrade.report()["workers"]) == ("rolled_back", {"replaced": 0, "of": 2})
            assert upgrade.reason.startswith("loading: the worker exited with status 3")
            assert [member.config.model for member in pool.members if member.routed] == ["toy", "toy"]

    test()


UNIT = KV_MEMORY // 8


def short_by(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Of memory for a second worker."""
    monkeypatch.setattr(upgrade_module, "need", lambda config, *_: Need(0, config.kv.memory, 0, 0, RESERVE + config.kv.memory - size))


def test_a_smaller_cache_is_tried_when_memory_is_short(monkeypatch: pytest.MonkeyPatch):
    short_by(monkeypatch, 1000)

    @run
    async def test():
        async with running_pool() as pool:
            upgrade = await upgraded(pool)
            assert (upgrade.state, pool.members[0].config.kv.memory) == ("done", KV_MEMORY - 1000)
            assert upgrade.report()["memory"]["kv"] == KV_MEMORY - 1000
            assert (await upgraded(pool, kv_memory=KV_MEMORY)).state == "rolled_back"

    test()


def test_the_old_worker_lends_what_of_its_cache_nobody_uses(monkeypatch: pytest.MonkeyPatch):
    short_by(monkeypatch, 5 * UNIT)

    @run
    async def test():
        async with running_pool("--spare", str(8 * UNIT)) as pool, loaded(pool):
            upgrade = await upgraded(pool, wait=False)
            (old,) = [member for member in pool.members if member.routed]
            await until(lambda: upgrade.state == "gating")
            assert old.stats.kv_spare == 3 * UNIT
            await upgrade.wait()
            assert (upgrade.state, upgrade.reason) == ("done", "")
            assert pool.members[0].config.kv.memory == KV_MEMORY  # nothing was taken from the new one's
            memory = upgrade.report()["memory"]
            assert (memory["lent"], memory["kv"]) == (5 * UNIT, KV_MEMORY)

    test()


@pytest.mark.parametrize(("end", "stops"), [("rolled back", 0), ("cancelled", 1), ("cancelled", 2)])
def test_what_was_lent_comes_back_when_nothing_comes_of_it(monkeypatch: pytest.MonkeyPatch, end: str, stops: int):
    short_by(monkeypatch, 5 * UNIT)

    @run
    async def test():
        async with running_pool("--spare", str(8 * UNIT)) as pool:
            (old,) = pool.members
            upgrade = await upgraded(pool, wait=False, model="toy --slow-start 60" if stops else "toy --wrong")
            await until(lambda: old.stats.kv_spare == 3 * UNIT)
            if stops:
                await until(lambda: upgrade.state == "loading" and len(pool.worker_pids()) == 2)
            stopping = []
            for _ in range(stops):  # the second comes while the first puts everything back
                stopping.append(asyncio.create_task(upgrade.stop()))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            await asyncio.gather(upgrade.wait(), *stopping)
            assert upgrade.state == end.replace(" ", "_")
            assert (old.routed, old.stats.kv_spare, pool.members) == (True, 8 * UNIT, [old])

    test()


def test_a_worker_that_takes_the_place_of_one_that_lends_lends_too(monkeypatch: pytest.MonkeyPatch):
    short_by(monkeypatch, 5 * UNIT)

    @run
    async def test():
        async with running_pool("--spare", str(8 * UNIT)) as pool:
            (old,) = pool.members
            upgrade = await upgraded(pool, wait=False, model="toy --slow-start 60")
            await until(lambda: upgrade.state == "loading")
            pid = old.pid
            old.kill()
            await until(lambda: old.up and old.pid != pid and old.stats.kv_spare == 3 * UNIT)
            await upgrade.stop()
            assert old.stats.kv_spare == 8 * UNIT

    test()


def test_what_the_old_worker_cannot_lend_the_new_one_does_without(monkeypatch: pytest.MonkeyPatch):
    short_by(monkeypatch, 5 * UNIT)

    @run
    async def test():
        async with running_pool("--spare", str(3 * UNIT)) as pool:
            upgrade = await upgraded(pool)
            assert (upgrade.state, pool.members[0].config.kv.memory) == ("done", KV_MEMORY - 2 * UNIT)
            assert upgrade.report()["memory"]["lent"] == 3 * UNIT

    test()


def test_nothing_is_lent_for_what_does_not_fit_anyhow(monkeypatch: pytest.MonkeyPatch):
    short_by(monkeypatch, 5 * UNIT)

    @run
    async def test():
        async with running_pool("--spare", str(3 * UNIT)) as pool:
            (old,) = pool.members
            asked = []
            monkeypatch.setattr(old, "lend", lambda size, timeout, real=old.lend: (asked.append(size), real(size, timeout))[1])
            upgrade = await upgraded(pool, kv_memory=KV_MEMORY)
            assert upgrade.reason.startswith("checking: a second worker does not fit beside the first, 0 MiB are missing")
            assert not any(asked)

    test()


def test_what_is_free_is_no_more_than_the_machine_has():
    assert 0 < free_memory() < psutil.virtual_memory().total
