"""The pool against a real worker process that has no model (tests/fake_worker.py)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pools import TEXTS, TOKENIZER, answer, ask, run, running_pool, until
from toys import byte_tokens

from pitstop.config import EngineConfig, PoolConfig
from pitstop.errors import ConfigError, DeadlineExceeded, Overloaded, PitstopError, Unavailable
from pitstop.pool import Pool
from pitstop.pool import pool as pool_module
from pitstop.pool.pool import DEADLINE_GRACE


@run
async def test_an_answer_streams_and_everything_is_booked():
    async with running_pool() as pool:
        assert pool.facts.context == 512
        assert await answer(ask(pool, "#say 你好, 🙂!#")) == ("你好, 🙂!", "stop")
        assert await answer(ask(pool, "count", max_tokens=4)) == ("0 1 ", "length")
        gauges = pool.gauges()
        assert (gauges.accepted, gauges.finished, gauges.queued, gauges.running, gauges.encoding) == (2, {"stop": 1, "length": 1}, 0, 0, 0)
        assert gauges.stats.generated_tokens == len("你好, 🙂!".encode()) + 1 + 4


@run
async def test_no_delta_holds_half_a_character():
    async with running_pool() as pool:
        texts = [delta.text async for _, delta in ask(pool, "#say 你🙂#")]
        assert "".join(texts) == "你🙂"
        assert set(texts) == {"", "你", "🙂"}


@run
async def test_a_stop_string_ends_the_stream_and_cancels_in_the_worker():
    async with running_pool() as pool:
        stream = ask(pool, "#slow 2##say ABCDEFGHIJKL and more#", stop=("DEFGHIJ",))
        deltas = [delta async for _, delta in stream]
        assert "".join(delta.text for delta in deltas) == "ABC"
        assert deltas[-1].finish == "stop"
        assert sum(len(delta.tokens) for delta in deltas) == len("ABCDEFGHIJ")
        await until(lambda: pool.gauges().stats.running == 0)
        assert pool.gauges().stats.generated_tokens < len("ABCDEFGHIJKL and more")
        assert pool.gauges().finished == {"stop": 1}


@run
async def test_a_stop_string_before_min_tokens_is_ignored():
    async with running_pool() as pool:
        assert await answer(ask(pool, "#say abcabc#", stop=("b",), min_tokens=4)) == ("abca", "stop")


@run
async def test_a_burst_counts_and_shows_nothing_after_the_stop_string():
    async with running_pool() as pool:
        deltas = [delta async for _, delta in ask(pool, "#burst 50##say one STOP two#", stop=("STOP",), logprobs=0)]
        assert "".join(delta.text for delta in deltas) == "one "
        assert sum(len(delta.tokens) for delta in deltas) == sum(len(delta.scores) for delta in deltas) == len("one STOP")


@run
async def test_messages_of_another_incarnation_are_ignored():
    async with running_pool("--stray") as pool:
        assert await answer(ask(pool, "#say true#")) == ("true", "stop")
        assert pool.gauges().stats.generated_tokens == 5


@run
async def test_scores_name_the_tokens_of_the_text():
    async with running_pool() as pool:
        deltas = [delta async for _, delta in ask(pool, "#say é!#", logprobs=2, prompt_logprobs=0)]
        scores = [score for delta in deltas for score in delta.scores]
        assert b"".join(score.bytes for score in scores) == "é!".encode()
        assert [score.text for score in scores] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
        assert [len(score.top) for score in scores] == [2, 2, 2]
        assert b"".join(score.bytes for score in deltas[0].prompt_scores) == "say é!#".encode()
        assert all(delta.prompt_scores is None for delta in deltas[1:])


@run
async def test_choices_of_one_request_come_apart():
    async with running_pool() as pool:
        texts, ends = ["", "", ""], []
        async for choice, delta in ask(pool, "#say ok#", choices=3):
            texts[choice] += delta.text
            ends += [choice] if delta.finish == "stop" else []
        assert texts == ["ok"] * 3
        assert sorted(ends) == [0, 1, 2]


@run
async def test_cancel_frees_running_and_queued_choices_at_once_and_in_the_worker():
    async with running_pool() as pool:
        streams = [ask(pool, "count #slow 5#", max_tokens=400) for _ in range(8)] + [ask(pool, "#hold#") for _ in range(3)]
        await anext(streams[0])
        await until(lambda: pool.gauges().running == 8)
        assert pool.gauges().queued == 3
        for stream in streams:
            stream.cancel()
            stream.cancel()  # twice is once
        gauges = pool.gauges()
        assert (gauges.running, gauges.queued, gauges.finished) == (0, 0, {"cancelled": 11})
        pool.journal.check()
        await until(lambda: pool.gauges().stats.waiting == pool.gauges().stats.running == 0)
        assert pool.gauges().stats.pages_free == 100


@run
async def test_leaving_a_stream_cancels_it():
    async with running_pool() as pool:
        with ask(pool, "count", max_tokens=400) as stream:
            await anext(stream)
        assert stream.cancelled
        assert pool.gauges().finished == {"cancelled": 1}


@run
async def test_the_queue_is_bounded_and_the_bound_counts_what_has_no_token_yet():
    async with running_pool(max_waiting=3) as pool:
        held = [ask(pool, "#hold#") for _ in range(2)]
        with pool.enter() as place:
            assert pool.gauges().encoding == 1
            with pytest.raises(Overloaded) as caught:
                pool.enter()
            assert caught.value.retry_after >= 1
            with pytest.raises(Overloaded):
                place.widen(2)
        assert pool.gauges().encoding == 0
        streaming = ask(pool, "count #slow 5#", max_tokens=400)
        await anext(streaming)
        assert await answer(ask(pool, "#say ok#")) == ("ok", "stop")  # the streaming one waits no more
        for stream in [*held, streaming]:
            stream.cancel()
        pool.journal.check()
        assert pool.journal.waiting == 0


@run
async def test_the_engine_ends_a_late_request():
    async with running_pool() as pool:
        for prompt in ("count #slow 20#", "#hold#"):
            with pytest.raises(DeadlineExceeded):
                await answer(ask(pool, prompt, timeout=0.05, max_tokens=400))
        assert pool.gauges().finished == {"timeout": 2}


@run
async def test_the_front_ends_a_late_request_that_the_engine_does_not():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "DEADLINE_GRACE", 0.2)
        async with running_pool() as pool:
            start = time.monotonic()
            stream = ask(pool, "count #wedge 2#", timeout=0.3)
            with pytest.raises(DeadlineExceeded):
                await answer(stream)
            assert 0.5 <= time.monotonic() - start < 2.0
            assert pool.gauges().finished == {"timeout": 1}
            await until(lambda: pool.gauges().stats.running == 0)  # the worker was told


@run
async def test_who_still_waits_is_ended_at_the_deadline_whatever_the_engine_does():
    async with running_pool() as pool:
        worker = pool.members[0].pid
        os.kill(worker, signal.SIGSTOP)
        try:
            start = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                await answer(ask(pool, "#say hi#", timeout=0.2))
            assert 0.2 <= time.monotonic() - start < 0.2 + DEADLINE_GRACE / 2
        finally:
            os.kill(worker, signal.SIGCONT)


@run
async def test_the_queue_is_bounded_by_prompt_tokens_too():
    async with running_pool(max_waiting_tokens=100) as pool:
        held = ask(pool, "#hold#" + "x" * 54)
        assert pool.gauges().waiting_tokens == 60
        also = ask(pool, "#hold#" + "x" * 34, choices=3)  # a prompt counts once
        assert pool.gauges().waiting_tokens == 100
        with pytest.raises(Overloaded, match="100 of 100 prompt tokens"):
            ask(pool, "x")
        assert (pool.gauges().rejected, pool.gauges().encoding) == ({"tokens": 1}, 0)
        for stream in (held, also):
            stream.cancel()
        assert pool.gauges().waiting_tokens == 0
        longer = ask(pool, "#hold#" + "x" * 200)  # alone, it may wait
        with pytest.raises(Overloaded):
            ask(pool, "x")
        longer.cancel()


@run
async def test_an_engine_error_ends_the_request_and_its_other_choices_only():
    async with running_pool() as pool:
        neighbour = ask(pool, "#slow 5##say fine#")
        with pytest.raises(PitstopError, match="scripted failure"):
            await answer(ask(pool, "#fail 3#", choices=2))
        assert pool.gauges().finished == {"error": 2}
        assert await answer(neighbour) == ("fine", "stop")


@run
async def test_a_worker_that_cannot_start_says_why():
    with pytest.raises(ConfigError, match="no such weights"):
        async with running_pool("--fail", "no such weights"):
            pass
    with pytest.raises(ConfigError, match="exited with status 3 before it was ready"):
        async with running_pool("--die-at-start"):
            pass
    with pytest.raises(ConfigError, match="not ready within"):
        async with running_pool("--slow-start", "60", start_timeout=0.3):
            pass


@run
async def test_a_program_that_does_not_exist():
    pool = Pool(PoolConfig(), EngineConfig(model="toy"), TEXTS, command=("/nonexistent",))
    with pytest.raises(ConfigError, match="cannot be started"):
        await pool.start()
    await pool.close()


@run
async def test_drain_lets_streams_finish_refuses_new_ones_and_leaves_no_child():
    async with running_pool() as pool:
        pid = pool.members[0].pid
        stream = ask(pool, "#slow 5##say finished#")
        await anext(stream)
        drain = asyncio.create_task(pool.drain())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            pool.enter()
        assert (await answer(stream))[1] == "stop"
        await drain
        await pool.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@run
async def test_drain_is_bounded():
    async with running_pool(stop_timeout=0.2) as pool:
        stream = ask(pool, "#hold#")
        await pool.drain()
        with pytest.raises(Unavailable):
            await answer(stream)
        assert pool.gauges().finished == {"cancelled": 1}


def test_the_worker_exits_when_the_front_is_killed():
    """The front is a process of its own here; end of file on the socket is all that the worker learns."""
    program = f"""
import asyncio, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pools import running_pool
async def main():
    async with running_pool() as pool:
        print(pool.members[0].pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    front = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert int(front.stdout.read()) > 0  # to the end of file: the worker inherited this pipe, so it has ended as well
    assert front.wait() == -signal.SIGKILL


def test_the_fake_says_bytes():
    assert TOKENIZER.decode(byte_tokens(b"abc")) == "abc"
