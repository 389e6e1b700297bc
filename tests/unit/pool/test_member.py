"""Members of a pool: started, probed, promoted, retired, and what a crash loop does."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest
from pools import FAKE, TOKENIZER, answer, ask, run, running_pool, until
from toys import byte_tokens

from pitstop.errors import ConfigError, DeadlineExceeded, Overloaded, PitstopError, Unavailable, WorkerDied


@run
async def test_a_probe_answers_beside_a_full_house_and_is_in_no_count():
    async with running_pool(max_waiting=20) as pool:
        assert pool.last_step_age() is None  # no work
        assert await pool.probe(TOKENIZER.encode("#say yes#"), 5, 5.0) == [*byte_tokens(b"yes"), 2, 2]  # greedy, to the last token
        streams = [ask(pool, "#hold#") for _ in range(20)]
        with pytest.raises(Overloaded):
            pool.enter()
        assert await pool.probe([5, 6], 4, 5.0) == byte_tokens(b"0 1 ")
        gauges = pool.gauges()
        assert (gauges.accepted, gauges.queued, gauges.running) == (20, 20, 0)
        assert gauges.stats.prompt_tokens == gauges.stats.generated_tokens == 0
        assert pool.last_step_age() < 5
        for stream in streams:
            stream.cancel()
        assert pool.last_step_age() is None


@run
async def test_a_probe_of_a_worker_that_says_nothing_fails_in_time_and_is_taken_back():
    async with running_pool() as pool:
        start = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await pool.probe(TOKENIZER.encode("#wedge 1#"), 5, 0.1)
        assert time.monotonic() - start < 2
        await until(lambda: pool.gauges().stats.running == 0)
        with pytest.raises(PitstopError, match="scripted failure"):
            await pool.probe(TOKENIZER.encode("#fail 1#"), 5, 5.0)
        with pytest.raises(WorkerDied):
            await pool.probe(TOKENIZER.encode("#die 1#"), 5, 5.0)


@run
async def test_a_second_member_is_started_probed_and_promoted_and_the_first_leaves_when_it_is_done():
    async with running_pool() as pool:
        (old,) = pool.members
        new = pool.add_member(replace(old.config, threads=1))
        assert (new.life, new.routed, pool.facts) == ("starting", False, old.facts)
        with pytest.raises(Unavailable):
            pool.promote(new)
        await new.ready()
        assert await answer(ask(pool, "#say still old#")) == ("still old", "stop")
        assert new.stats.generated_tokens == 0
        assert await pool.probe([5], 2, 5.0, member=new) == byte_tokens(b"0 ")
        stream = ask(pool, "#slow 10##say from the old one#")
        pool.promote(new)
        pool.retire(old)
        assert (old.life, new.life, pool.facts) == ("retiring", "ready", new.facts)
        assert await answer(ask(pool, "#say from the new#")) == ("from the new", "stop")
        assert new.stats.generated_tokens == len("from the new") + 1
        generated = pool.gauges().stats.generated_tokens
        assert not old.gone.is_set()
        assert (await answer(stream))[1] == "stop"
        await old.gone.wait()
        assert (pool.members, old.life, pool.state) == ([new], "dead", "ready")
        assert pool.gauges().stats.generated_tokens >= generated  # counters never go back
        with pytest.raises(ProcessLookupError):
            os.kill(old.pid, 0)


@run
async def test_a_member_that_fails_before_it_is_promoted_leaves_the_pool_as_it_was():
    async with running_pool() as pool:
        (old,) = pool.members
        pool._command = (*FAKE, "--fail", "broken weights")
        new = pool.add_member(old.config)
        with pytest.raises(ConfigError, match="broken weights"):
            await new.ready()
        assert (pool.members, new.life) == ([old], "dead")
        pool._command = FAKE
        new = pool.add_member(old.config)
        await new.ready()
        os.kill(new.pid, signal.SIGKILL)
        await new.gone.wait()  # it is not replaced
        third = pool.add_member(old.config)
        pool.retire(third)  # not wanted after all, while it starts
        await third.gone.wait()
        assert (pool.members, pool.state, pool.gauges().restarts) == ([old], "ready", 0)
        assert await answer(ask(pool, "#say fine#")) == ("fine", "stop")


def test_a_crash_loop_backs_off_and_ends(tmp_path):
    flag = tmp_path / "die"

    @run
    async def test():
        async with running_pool("--die-if", str(flag)) as pool:
            flag.touch()
            start = time.monotonic()
            os.kill(pool.members[0].pid, signal.SIGKILL)
            await until(lambda: pool.gauges().restarts == 3)
            assert time.monotonic() - start > 0.05 + 0.1 + 0.2
            assert pool.state == "restarting"
            assert pool.members[0].exit_status == "was killed by SIGKILL"
            assert pool.gauges().deaths_in_a_row >= 3
            flag.unlink()
            await until(lambda: pool.state == "ready")
            assert await answer(ask(pool, "#say back#")) == ("back", "stop")

    test()
