"""Which worker runs a request: prefixes, loads, and a pool of two workers."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tracemalloc
from dataclasses import dataclass

import pytest
from pools import TOKENIZER, answer, ask, run, running_pool, until

from pitstop.config import EngineConfig, resolve, usable_cores
from pitstop.errors import Quarantined
from pitstop.pool.journal import Entry
from pitstop.pool.prefixes import Prefixes
from pitstop.pool.router import AFFINITY, Router
from pitstop.pool.stream import Stream
from pitstop.types import SEGMENT, Request, SamplingParams


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(50000), k=count)


def test_prefixes_are_shared_in_whole_blocks():
    prefixes = Prefixes()
    trunk = words(0, 3 * SEGMENT)
    prefixes.served(0, trunk + words(1, 200))
    prefixes.served(1, trunk[: 2 * SEGMENT] + words(2, 50))
    assert prefixes.shared(trunk + words(3, 500)) == {0: 3 * SEGMENT, 1: 2 * SEGMENT}
    assert prefixes.shared(trunk[: SEGMENT - 1]) == {}
    assert prefixes.shared(words(4, 300)) == {}
    assert prefixes.shared(words(4, SEGMENT) + trunk) == {}, "a block counts after its own beginning only"


def test_a_place_without_the_beginning_does_not_count_for_the_end():
    prefixes = Prefixes(limit=100)
    trunk = words(0, 3 * SEGMENT)
    prefixes.served(0, trunk)
    prefixes.served(1, trunk)
    for block in list(prefixes._blocks.values())[-1:]:  # as if place 1 had forgotten the first block alone
        block.places.discard(1)
    assert prefixes.shared(trunk) == {0: 3 * SEGMENT}


def test_prefixes_are_bounded_and_forget_leaves_first():
    prefixes = Prefixes(limit=3)
    trunk = words(0, 2 * SEGMENT)
    prefixes.served(0, trunk + words(1, SEGMENT))
    prefixes.served(0, trunk + words(2, SEGMENT))
    assert len(prefixes) == 3
    assert prefixes.shared(trunk + words(2, SEGMENT)) == {0: 3 * SEGMENT}
    assert prefixes.shared(trunk + words(1, SEGMENT)) == {0: 2 * SEGMENT}
    prefixes.served(1, trunk)
    prefixes.forget(0)
    assert prefixes.shared(trunk + words(2, SEGMENT)) == {1: 2 * SEGMENT}
    assert len(prefixes) == 2
    assert prefixes.hot(5) == [("", trunk)]
    prefixes.served(1, trunk + words(3, 9 * SEGMENT))  # longer than what is remembered
    assert prefixes.hot(5) == [("", trunk + words(3, SEGMENT))]
    prefixes.clear()
    assert (len(prefixes), prefixes.shared(trunk), prefixes.hot(5)) == (0, {}, [])


def test_prefixes_take_their_memory_at_once():
    tracemalloc.start()
    try:
        prefixes = Prefixes()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(5000):
            prefixes.served(number % 3, words(number, SEGMENT))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(prefixes) == 4096
    assert before > 3 << 20
    assert after < before * 1.1


def test_hot_prompts_come_back_as_they_were():
    prefixes = Prefixes()
    first, second = words(1, 3 * SEGMENT + 5), words(1, 2 * SEGMENT) + words(2, 2 * SEGMENT)
    prefixes.served(0, first)
    prefixes.served(0, second)
    prefixes.served(0, second[:SEGMENT])
    prefixes.served(1, first, "a@1")
    assert prefixes.hot(5) == [("a@1", first[: 3 * SEGMENT]), ("", second), ("", first[: 3 * SEGMENT])]
    assert prefixes.hot(1, 0) == [("", second)]


def test_an_adapter_has_prefixes_of_its_own():
    prefixes, trunk = Prefixes(), words(0, 2 * SEGMENT)
    prefixes.served(0, trunk, "a@1")
    prefixes.served(1, trunk)
    assert [prefixes.shared(trunk, name) for name in ("a@1", "", "a@2")] == [{0: 2 * SEGMENT}, {1: 2 * SEGMENT}, {}]
    router, (a, b) = Router(), (members := [Stub(0), Stub(1)])
    router.chosen(a, entry(trunk, "a@1"))
    router.chosen(b, entry(trunk))
    assert [router.choose(members, entry(trunk, name)) for name in ("a@1", "")] == [a, b]


@dataclass(eq=False)
class Stub:
    position: int
    load: int = 0


def entry(prompt: list[int], adapter: str = "") -> Entry:
    return Entry(Request(id="a", prompt=prompt, params=SamplingParams(), adapter=adapter), Stream(["a"], lambda stream: None))


def test_the_least_loaded_member_is_chosen_and_equals_take_turns():
    router, members = Router(), [Stub(0, 50), Stub(1, 10), Stub(2, 10)]
    turns = []
    for _ in range(4):
        turns.append(router.choose(members, entry([1])))
        router.chosen(turns[-1], entry([1]))
    assert [member.position for member in turns] == [1, 2, 1, 2]


def test_the_longest_prefix_wins_within_the_bound():
    router, (a, b, c) = Router(), (members := [Stub(0), Stub(1), Stub(2)])
    prompt = words(0, 4 * SEGMENT)
    router.chosen(a, entry(prompt))
    router.chosen(b, entry(prompt[:SEGMENT]))
    assert router.choose(members, entry([*prompt, 1])) is a
    a.load = int(AFFINITY * 4 * SEGMENT)
    assert router.choose(members, entry([*prompt, 1])) is a
    a.load += 1
    assert router.choose(members, entry([*prompt, 1])) is b, "the next best"
    b.load = int(AFFINITY * SEGMENT) + 1
    assert router.choose(members, entry([*prompt, 1])) is c


def test_a_new_member_at_an_old_position_has_its_prefixes():
    router, old, other, prompt = Router(), Stub(0), Stub(1), words(0, 2 * SEGMENT)
    router.chosen(old, entry(prompt))
    new = Stub(0)
    assert router.choose([other, new], entry(prompt)) is new


def test_workers_divide_what_is_free_and_not_what_is_given():
    def resolved(**fields) -> EngineConfig:
        return resolve(EngineConfig(model="x", **fields), model_context=8192, cuda=False, free_memory=8 << 30)

    assert resolved(workers=2).kv.memory * 2 == resolved().kv.memory
    assert resolved(workers=2).threads == max(1, usable_cores() // 2)
    assert resolved(workers=1000).threads == 1
    assert resolved(workers=2, threads=5).threads == 5


LONG = "quick " * 30  # more than a block


@run
async def test_two_workers_share_the_work_and_one_goes_on_for_the_other():
    async with running_pool(workers=2) as pool:
        first, second = pool.members
        assert pool.facts.capacity.tokens == 2 * first.facts.capacity.tokens
        assert first.config.workers == 2
        streams = [ask(pool, "count #slow 5#", max_tokens=100) for _ in range(4)]
        assert (len(first.entries), len(second.entries)) == (2, 2)
        for stream in streams:
            await anext(stream)
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: not first.up)
        assert pool.state == "ready"
        assert len(second.entries) == 4
        for stream in streams:
            text, finish = await answer(stream)
            assert (len(text), finish) == (99, "length")
        assert second.stats.generated_tokens > 200
        assert pool.gauges().resumed == 2
        await until(lambda: first.up)
        again = [ask(pool, "#say yes#") for _ in range(2)]
        assert (len(first.entries), len(second.entries)) == (1, 1)
        assert [await answer(stream) for stream in again] == [("yes", "stop")] * 2


@run
async def test_one_of_two_workers_in_a_crash_loop_costs_no_answer():
    async with running_pool(workers=2) as pool:
        bad = ask(pool, "count #crash 3#")
        good = [ask(pool, "count #slow 2#", max_tokens=150, timeout=20) for _ in range(6)]
        assert [len((await answer(stream))[0]) for stream in good] == [150] * 6
        with pytest.raises(Quarantined):
            await answer(bad)
        assert 1 <= pool.gauges().restarts <= 2


@run
async def test_prompts_of_one_beginning_go_to_one_worker_also_after_an_upgrade():
    async with running_pool(workers=2) as pool:

        async def where(prompt: str) -> int:
            before = [member.stats.generated_tokens for member in pool.members]
            await answer(ask(pool, prompt + "#say x#"))
            return next(i for i, member in enumerate(pool.members) if member.stats.generated_tokens > before[i])

        places = {letter: await where(letter + LONG) for letter in "abcdef"}
        assert set(places.values()) == {0, 1}
        for letter in "fadbec":
            assert await where(letter + LONG) == places[letter]
        old = list(pool.members)
        new = [pool.add_member(member.config) for member in old]
        await asyncio.gather(*(member.ready() for member in new))
        for before, after in zip(old, new, strict=True):
            pool.promote(after, replacing=before)
            pool.retire(before)
        await asyncio.gather(*(member.gone.wait() for member in old))
        assert pool.members == new
        for letter in "fadbec":
            assert await where(letter + LONG) == places[letter]
        hot = [TOKENIZER.decode(prompt) for _, prompt in pool.hot_prompts(10)]
        assert sorted(text[0] for text in hot) == list("abcdef")
