"""LoRA adapters of a pool before fake workers: loaded, unloaded, restarted, upgraded, lost."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest
from pools import answer, ask, run, running_pool, toy_model, until

from pitstop.config import Adapter
from pitstop.engine import crash
from pitstop.errors import ConfigError, InvalidRequest, ModelNotFound, PitstopError, Unavailable
from pitstop.pool import Pool, Upgrade, Wish

A, B, AGAIN = Adapter("a", "/x/a", "1"), Adapter("b", "/x/b", "2"), Adapter("a", "/y/a", "3")
WHO = "#who#"


async def who(pool: Pool, adapter: Adapter | None, prompt: str = WHO) -> str:
    return (await answer(ask(pool, prompt, adapter=adapter.id if adapter else "")))[0]


@run
async def test_adapters_come_and_go_beside_the_base():
    async with running_pool(adapters=(A,)) as pool:
        assert [await who(pool, each) for each in (A, None)] == ["a", "base"]
        with pytest.raises(ModelNotFound, match="just been unloaded"):
            await who(pool, B)
        await pool.adapters.load(B)
        assert list(pool.adapters.served) == ["a", "b"]
        assert await asyncio.gather(*(who(pool, each) for each in (A, B, None))) == ["a", "b", "base"]
        pool.adapters.unload("a")
        with pytest.raises(ModelNotFound):
            await who(pool, A)
        with pytest.raises(ModelNotFound):
            pool.adapters.unload("a")
        assert pool.members[0].adapters.ready == {B.id}
        assert pool.adapters.all() == (B,)


@run
async def test_requests_that_use_it_finish_before_it_goes():
    async with running_pool(adapters=(A,)) as pool:
        (member,) = pool.members
        stream = ask(pool, "#slow 5##say one two three#", adapter=A.id)
        await anext(stream)
        pool.adapters.unload("a")
        assert (pool.adapters.all(), member.adapters.ready) == ((A,), {A.id})
        await pool.adapters.load(AGAIN)  # another one takes the name while the first is still in use
        assert await who(pool, AGAIN) == "a"
        assert (await answer(stream))[1] == "stop"
        assert (pool.adapters.all(), member.adapters.ready) == ((AGAIN,), {AGAIN.id})
        stream = ask(pool, "#hold#", adapter=AGAIN.id)
        pool.adapters.unload("a")
        stream.cancel()
        assert pool.adapters.all() == ()
        assert member.adapters.ready == set()


@run
async def test_one_that_comes_back_before_it_has_gone_need_not_be_loaded():
    async with running_pool(adapters=(A,)) as pool:
        stream = ask(pool, "#hold#", adapter=A.id)
        pool.adapters.unload("a")
        await pool.adapters.load(A)
        stream.cancel()
        assert (await who(pool, A), pool.adapters.all()) == ("a", (A,))


@run
async def test_what_a_worker_cannot_load_nobody_has():
    async with running_pool(workers=2) as pool:
        with pytest.raises(InvalidRequest, match="it is gone") as caught:
            await pool.adapters.load(Adapter("c", "/x/gone", "4"))
        assert caught.value.field == "path"
        await pool.adapters.load(A)
        with pytest.raises(InvalidRequest, match="already") as caught:
            await pool.adapters.load(AGAIN)
        assert caught.value.field == "name"
        first, second = (pool.adapters.load(each) for each in (Adapter("l", "/x/late", "5"), Adapter("l", "/y/late", "6")))
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), InvalidRequest]
        assert [member.adapters.ready for member in pool.members] == [{A.id, "l@5"}] * 2
        assert not pool.adapters.coming
        assert {adapter.id for adapter in pool.adapters.all()} == {A.id, "l@5"}


@run
async def test_a_worker_that_dies_of_an_adapter_comes_back_without_it():
    async with running_pool(adapters=(A,)) as pool:
        with pytest.raises(Unavailable, match="try again"):
            await pool.adapters.load(Adapter("d", "/x/deadly", "7"))
        await until(lambda: pool.state == "ready")
        assert pool.members[0].adapters.ready == {A.id}
        assert await who(pool, A) == "a"


@run
async def test_a_worker_that_starts_again_has_them_all_also_those_on_their_way_out():
    async with running_pool(adapters=(A,)) as pool:
        await pool.adapters.load(B)
        leaving = ask(pool, "#slow 2##say a long story of the sea#", adapter=A.id)
        staying = ask(pool, "#slow 2##say a long story of the land#", adapter=B.id)
        await anext(leaving)
        pool.adapters.unload("a")
        os.kill(pool.worker_pids()[0], signal.SIGKILL)
        assert "a long story of the sea".endswith((await answer(leaving))[0])
        assert "a long story of the land".endswith((await answer(staying))[0])
        assert pool.gauges().resumed == 2
        assert pool.members[0].adapters.ready == {B.id}


@run
async def test_a_worker_that_was_starting_has_what_came_meanwhile_and_not_what_went():
    async with running_pool("--slow-start", "0.5", adapters=(A,), workers=2) as pool:
        staying, starting = pool.members
        pid = starting.pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: starting.pid != pid)
        await pool.adapters.load(B)
        pool.adapters.unload("a")
        await until(lambda: starting.adapters.ready == staying.adapters.ready == {B.id})


@pytest.mark.parametrize("phase", ["loading", "warming"])
def test_one_that_is_unloaded_during_an_upgrade_does_not_stop_it(phase: str):
    @run
    async def test():
        async with running_pool(adapters=(A,)) as pool:
            for number in range(3):
                await who(pool, A, f"{number}" + "quick " * 50 + WHO)
            upgrade = Upgrade(pool, Wish(model="toy --slow-start 0.3"), toy_model)
            await until(lambda: upgrade.state == phase and len(pool.worker_pids()) == 2)
            pool.adapters.unload("a")
            await upgrade.wait()
            assert (upgrade.state, [member.adapters.ready for member in pool.members]) == ("done", [set()])

    test()


@run
async def test_a_worker_that_leaves_tells_who_waits_for_it():
    async with running_pool() as pool:
        (member,) = pool.members
        waiting = [member.load_adapter(A), asyncio.create_task(member.lend(1, 60))]
        await asyncio.sleep(0)
        await member.close()
        for ended in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10):
            assert isinstance(ended, PitstopError)


@run
async def test_a_suspect_goes_on_with_its_adapter_and_the_record_has_it():
    with tempfile.TemporaryDirectory() as folder:
        async with running_pool(adapters=(A,), crash_dir=folder) as pool:
            assert (await answer(ask(pool, "#upto 1##crash 1##who#", adapter=A.id)))[0] == "a"
            await until(lambda: len(list(Path(folder).glob("*.json"))) == 1)
            await pool._records.close()
            record = crash.load(next(Path(folder).glob("*.json")))
            assert record.engine.adapters == (A,)
            assert [request.adapter for request in record.requests.values()] == [A.id]


@run
async def test_an_adapter_that_is_lost_is_served_no_more_and_nobody_waits_for_it():
    with tempfile.TemporaryDirectory() as folder:
        lost = Adapter("lost", folder, "8")
        async with running_pool(adapters=(A, lost)) as pool:
            stream, other = ask(pool, "count #slow 5#", adapter=lost.id), ask(pool, "#slow 5##say hello#", adapter=A.id)
            await anext(stream)
            (Path(folder) / "gone").touch()
            os.kill(pool.worker_pids()[0], signal.SIGKILL)
            with pytest.raises(Unavailable, match="cannot be loaded again"):
                await answer(stream)
            assert (await answer(other))[1] == "stop"
            assert (list(pool.adapters.served), pool.adapters.all()) == (["a"], (A,))
            with pytest.raises(ModelNotFound):
                await who(pool, lost)


@run
async def test_one_of_two_workers_that_lost_it_gets_no_request_for_it():
    with tempfile.TemporaryDirectory() as folder:
        lost = Adapter("half", folder, "9")
        async with running_pool(adapters=(lost,), workers=2) as pool:
            first, second = pool.members
            (Path(folder) / "gone").touch()
            os.kill(first.pid, signal.SIGKILL)
            await until(lambda: not first.up)
            await until(lambda: first.up)
            assert (first.adapters.ready, second.adapters.ready) == (set(), {lost.id})
            assert await asyncio.gather(*(who(pool, lost) for _ in range(4))) == ["half"] * 4
            assert second.stats.generated_tokens == 20


@run
async def test_a_start_without_one_of_them_fails():
    with pytest.raises(ConfigError, match="it is gone"):
        async with running_pool(adapters=(Adapter("c", "/x/gone", "4"),)):
            pass


@run
async def test_an_upgrade_takes_them_along_with_their_prefixes():
    async with running_pool(adapters=(A,)) as pool:
        await pool.adapters.load(B)
        long = "quick " * 50
        for adapter in (A, B, None):
            await who(pool, adapter, long + WHO)
        upgrade = Upgrade(pool, Wish(model="toy2", max_kl=1.0), toy_model)
        await upgrade.wait()
        assert (upgrade.state, upgrade.report()["warmed"]["prompts"]) == ("done", 3)
        assert await asyncio.gather(*(who(pool, each) for each in (A, B, None))) == ["a", "b", "base"]


@run
async def test_an_upgrade_to_a_model_that_they_do_not_fit_is_rolled_back():
    with tempfile.TemporaryDirectory() as folder:
        async with running_pool(adapters=(Adapter("mine", folder, "1"),)) as pool:
            (old,) = pool.members
            (Path(folder) / "gone").touch()
            upgrade = Upgrade(pool, Wish(model="toy2"), toy_model)
            await upgrade.wait()
            assert upgrade.state == "rolled_back"
            assert "cannot serve an adapter: it is gone; unload it first" in upgrade.reason
            assert pool.members == [old]
            assert await who(pool, Adapter("mine", folder, "1")) == "mine"
