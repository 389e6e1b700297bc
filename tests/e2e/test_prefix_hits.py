"""How much of a prompt comes from the prefix cache, beside a cache that could reuse any token (16 bits, shared token by token)."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams

CODECS = ("raw16", "int8", "int4", "adaptive8", "delta8")
ONE = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
Ask = Callable[[list[int]], int]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", head_dim=32)


@pytest.fixture(params=CODECS)
def ask(request: pytest.FixtureRequest, toy: Path) -> Iterator[Ask]:
    """From a prompt to how many of its tokens came from the cache."""
    llm = LLM(toy, codec=request.param, guard="off")
    yield lambda prompt: llm.generate([prompt], ONE)[0].cached_tokens
    llm.engine.check()


def words(seed: int, count: int) -> list[int]:
    return torch.randint(3, 259, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("trunk", [100, 300, 384, 500])
def test_from_the_third_sharer_on_hits_are_those_of_a_token_wise_cache(ask: Ask, trunk: int) -> None:
    """A system prompt and ever new questions. The first computes all of it, the second the trunk's last part of a segment."""
    prompts = [words(0, trunk) + words(seed, 60) for seed in range(1, 7)]
    hits = [ask(prompt) for prompt in prompts]
    recomputed = [trunk - hit for hit in hits]
    assert recomputed[0] == trunk
    assert recomputed[1] == (trunk % 128 if trunk + 60 >= trunk - trunk % 128 + 128 else 0)
    assert recomputed[1] <= 127
    assert recomputed[2:] == [0] * 4, "within 1 % is asked, none it is"


def test_what_the_first_two_sharers_recompute(ask: Ask) -> None:
    """The statement of it: pytest -s prints the table."""
    print("\ntrunk: tokens of it that the first, second and third sharer compute")
    for trunk in (64, 127, 128, 200, 255, 256):
        lost = [trunk - ask(words(trunk, trunk) + words(trunk + seed, 130)) for seed in range(1, 4)]
        print(f"{trunk}: {lost[0]}, {lost[1]}, {lost[2]}")
        assert lost == [trunk, trunk % 128, 0]


def test_a_conversation_recomputes_one_token_a_turn(ask: Ask) -> None:
    """Each turn's prompt is the last one and what followed; the last prompt token and what was never computed are not hits."""
    turns = [words(9, 90 + 70 * turn) for turn in range(6)]
    hits = [ask(turn) for turn in turns]
    assert [hit - len(before) for hit, (before, _) in zip(hits[1:], pairwise(turns), strict=True)] == [0] * 5
    assert ask(turns[-1]) == len(turns[-1]) - 1


def test_many_branch_points_are_kept_up_to_the_limit(toy: Path) -> None:
    """32 open segments are kept; a branch point whose segment had to go costs its next sharer at most 127 tokens, as the first time."""
    llm = LLM(toy, codec="int8", guard="off", cached_tails=4)
    trunks = [words(seed, 200) for seed in range(5)]
    hits = []
    for round in range(3):
        hits.append([llm.generate([trunk + words(100 * round + i, 80)], ONE)[0].cached_tokens for i, trunk in enumerate(trunks)])
    assert hits[0] == [0] * 5
    assert all(hit == 128 for hit in hits[1])
    assert all(hit in (128, 200) for hit in hits[2])


@pytest.mark.parametrize("codec", CODECS)
def test_a_lent_cache_keeps_what_was_used_last_and_room_for_one_stream(toy: Path, codec: str) -> None:
    """What comes back is as good as new, and answers are the same to the bit all the time."""
    llm = LLM(toy, codec=codec, guard="off", context=512, memory=32 << 20)
    prompts = [words(seed, 300) for seed in range(8)]

    def ask(prompt: list[int]) -> tuple[int, list[int]]:
        answer = llm.generate([prompt], SamplingParams(max_tokens=9, temperature=0, ignore_eos=True))[0]
        llm.engine.check()
        return answer.cached_tokens, answer.tokens

    expected = [ask(prompt)[1] for prompt in prompts]
    before, store = llm.engine.stats(), llm.engine._runner.store
    page = store.touched_bytes(1, 0)
    assert before.kv_spare == page * (before.pages_total - 512 // 128 - store.codec.lead_pages)
    untouched = page * before.pages_free
    assert llm.engine.lend(untouched) == untouched
    assert llm.engine.stats().pages_cached == before.pages_cached == 8 * (2 + store.codec.lead_pages)
    half = untouched + page * before.pages_cached // 2
    assert llm.engine.lend(half) == half
    if sys.platform == "linux":  # its memory is given back, but for what of the system's pages is a neighbour's
        assert not store.pages[:, llm.engine._cache.pages._withdrawn, mmap.PAGESIZE : -mmap.PAGESIZE].any()
    assert [ask(prompt) for prompt in prompts[:3:-1]] == [(299, tokens) for tokens in expected[:3:-1]]
    assert ask(prompts[0]) == (0, expected[0])
    assert llm.engine.lend(1 << 40) == before.kv_spare
    assert llm.engine.stats().kv_spare == 0
    assert ask(words(9, 500))[0] == 0
    assert ask(prompts[5]) == (0, expected[5])
    assert llm.engine.lend(0) == 0
    after = llm.engine.stats()
    assert (after.pages_total, after.kv_spare) == (before.pages_total, before.kv_spare)
    assert [ask(prompt)[1] for prompt in prompts] == expected
    assert [ask(prompt) for prompt in prompts] == [(299, tokens) for tokens in expected]
