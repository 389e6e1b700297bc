"""The pool against a real worker process that has no model (tests/fake_worker.py)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from toys import byte_tokens, toy_vocabulary

from pitstop.config import EngineConfig, PoolConfig
from pitstop.errors import ConfigError, DeadlineExceeded, Overloaded, PitstopError, Unavailable, WorkerDied
from pitstop.pool import Pool, Stream
from pitstop.pool.pool import DEADLINE_GRACE
from pitstop.text.tokenizer import Tokenizer
from pitstop.types import Request, SamplingParams

FAKE = (sys.executable, str(Path(__file__).parents[2] / "fake_worker.py"))
TOKENIZER = Tokenizer(toy_vocabulary())


@asynccontextmanager
async def running_pool(*options: str, **config):
    pool = Pool(PoolConfig(restart_backoff=0.05, **config), EngineConfig(model="toy"), TOKENIZER, command=(*FAKE, *options))
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()
        pool.journal.check()
        assert not pool.journal.entries


def run(test: Callable[[], Coroutine]) -> Callable[[], None]:
    def wrapped() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


_ids = iter(range(10**6))


def requests(prompt: str, choices: int = 1, timeout: float | None = None, **params) -> list[Request]:
    params.setdefault("max_tokens", 100)
    number = next(_ids)
    now = time.monotonic()
    return [
        Request(
            id=f"r{number}-{choice}",
            prompt=TOKENIZER.encode(prompt),
            params=SamplingParams(**params),
            choice=choice,
            group=f"r{number}",
            arrival=now,
            deadline=None if timeout is None else now + timeout,
        )
        for choice in range(choices)
    ]


def ask(pool: Pool, prompt: str, **options) -> Stream:
    wanted = requests(prompt, **options)
    with pool.enter(len(wanted)) as place:
        return place.submit(wanted)


async def answer(stream: Stream) -> tuple[str, str | None]:
    text, finish = "", None
    async for _, delta in stream:
        text += delta.text
        finish = delta.finish
    return text, finish


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process brings about; the test's own time limit bounds it."""
    while not condition():
        await asyncio.sleep(0.005)


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
    async with running_pool() as pool:
        start = time.monotonic()
        stream = ask(pool, "count #wedge 2#", timeout=0.1 - DEADLINE_GRACE)
        with pytest.raises(DeadlineExceeded):
            await answer(stream)
        assert time.monotonic() - start < 2.0
        assert pool.gauges().finished == {"timeout": 1}
        await until(lambda: pool.gauges().stats.running == 0)  # the worker was told


@run
async def test_an_engine_error_ends_the_request_and_its_other_choices_only():
    async with running_pool() as pool:
        neighbour = ask(pool, "#slow 5##say fine#")
        with pytest.raises(PitstopError, match="scripted failure"):
            await answer(ask(pool, "#fail 3#", choices=2))
        assert pool.gauges().finished == {"error": 2}
        assert await answer(neighbour) == ("fine", "stop")


@run
async def test_sigkill_mid_stream_ends_the_streams_and_a_new_worker_comes():
    async with running_pool() as pool:
        streams = [ask(pool, "count #slow 5#", max_tokens=400) for _ in range(3)]
        await anext(streams[0])
        os.kill(pool.members[0].pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(WorkerDied):
                await answer(stream)
        assert pool.state == "restarting"
        with pytest.raises(Unavailable):
            pool.enter()
        assert pool.gauges().finished == {"error": 3}
        assert pool.journal.waiting == 0
        generated = pool.gauges().stats.generated_tokens
        await until(lambda: pool.state == "ready")
        assert await answer(ask(pool, "#say back#")) == ("back", "stop")
        assert pool.gauges().restarts == 1
        assert pool.gauges().stats.generated_tokens == generated + 5  # counters never go back


@run
async def test_a_worker_that_dies_by_itself_is_replaced_too():
    async with running_pool() as pool:
        stream = ask(pool, "count #die 3#")
        with pytest.raises(WorkerDied):
            await answer(stream)
        await until(lambda: pool.state == "ready")
        assert await answer(ask(pool, "#say back#")) == ("back", "stop")


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
            flag.unlink()
            await until(lambda: pool.state == "ready")
            assert await answer(ask(pool, "#say back#")) == ("back", "stop")

    test()


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
        stream = ask(pool, "#slow 10##say from the old one#")
        await anext(stream)
        new = pool.add_member(replace(old.config, threads=1))
        assert (new.life, new.routed, pool.facts) == ("starting", False, old.facts)
        with pytest.raises(Unavailable):
            pool.promote(new)
        await new.ready()
        assert await answer(ask(pool, "#say still old#")) == ("still old", "stop")
        assert new.stats.generated_tokens == 0
        assert await pool.probe([5], 2, 5.0, member=new) == byte_tokens(b"0 ")
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
    pool = Pool(PoolConfig(), EngineConfig(model="toy"), TOKENIZER, command=("/nonexistent",))
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
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_pool import running_pool
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
