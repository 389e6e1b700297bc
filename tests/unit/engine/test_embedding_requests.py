"""Requests that embed in the scheduler: what is computed, what is pooled, and what beside. The model is tests/fake_runner.py."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from fake_runner import FakeRunner

from pitstop.engine.encoder import NoCache
from pitstop.engine.pooling import Pool
from pitstop.engine.scheduler import Scheduler, Sequence
from pitstop.errors import ContextLengthExceeded, InvalidRequest
from pitstop.kv.cache import KVCache
from pitstop.kv.capacity import longest_stream
from pitstop.types import Output, Request, Sampled, SamplingParams

VOCAB = 1000


def make(pages: int = 32, tails: int = 16, **options) -> tuple[Scheduler, FakeRunner]:
    cache = KVCache(pages, tails, prefix=True, cached_tails=4)
    return Scheduler(cache, context=longest_stream(pages, 0), vocab_size=VOCAB, **options), FakeRunner(VOCAB)


def request(name: str, prompt: list[int], embed: str | None = "mean", max_tokens: int = 0, **fields) -> Request:
    return Request(id=name, prompt=prompt, params=SamplingParams(max_tokens=max_tokens), embed=embed, **fields)


def finish(scheduler: Scheduler, runner: FakeRunner) -> dict[str, Output]:
    """The last output of each."""
    outputs: dict[str, Output] = {}
    while scheduler.busy:
        plan = scheduler.plan()
        assert plan.spans, "the scheduler makes no progress"
        outputs |= {output.id: output for output in scheduler.settle(plan, runner.run(plan))}
        scheduler.cache.check()
    return outputs


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


def expected(prompt: list[int], pooling: str) -> bytes:
    hidden = FakeRunner(VOCAB).hidden(prompt, 0, len(prompt))
    total = np.zeros(2)
    for row in hidden:
        total += row
    return {"mean": total / len(hidden), "last": hidden[-1], "cls": hidden[0]}[pooling].astype("<f4").tobytes()


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
@pytest.mark.parametrize("chunk", [1, 16, 128, 500])
def test_a_vector_does_not_depend_on_chunks_or_company(pooling: str, chunk: int) -> None:
    scheduler, runner = make(prefill_chunk=chunk)
    prompts = {f"r{length}": words(length, length) for length in (1, 2, 127, 128, 129, 300)}
    for name, prompt in prompts.items():
        scheduler.submit(request(name, prompt, pooling))
    scheduler.submit(request("speaks", words(0, 50), None, max_tokens=40))
    outputs = finish(scheduler, runner)
    for name, prompt in prompts.items():
        assert (outputs[name].finish, outputs[name].tokens) == ("stop", [])
        assert outputs[name].vector == expected(prompt, pooling)
    assert outputs["speaks"].finish == "length"
    assert outputs["speaks"].vector == b""


def test_a_mean_takes_nothing_from_the_prefix_cache_and_the_last_state_does() -> None:
    scheduler, runner = make()
    prompt = words(1, 300)
    for pooling, cached in (("mean", 0), ("last", 299), ("mean", 0), ("cls", 0), ("last", 299)):
        scheduler.submit(request("again", prompt, pooling))
        output = finish(scheduler, runner)["again"]
        assert (output.cached_tokens, output.vector) == (cached, expected(prompt, pooling))


def test_a_planted_prefix_hit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a mean served from the prefix cache as the last state is, rows would be missing."""
    monkeypatch.setattr(Sequence, "wanted_from", property(lambda sequence: len(sequence.known) - 1))
    with pytest.raises(AssertionError):
        test_a_mean_takes_nothing_from_the_prefix_cache_and_the_last_state_does()


def test_a_preempted_mean_begins_anew() -> None:
    """An answer that came before grows, and takes the page that the text needs."""
    scheduler, runner = make(pages=5, tails=8, prefill_chunk=1)
    prompt = words(1, 450)
    scheduler.submit(request("answer", words(0, 100), None, max_tokens=300))
    scheduler.submit(request("text", prompt, "mean", arrival=1.0))
    outputs = finish(scheduler, runner)
    assert scheduler.preemptions > 0
    assert outputs["text"].vector == expected(prompt, "mean")


def test_a_planted_mean_that_counts_preempted_rows_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "clear", lambda pool: None)
    with pytest.raises(AssertionError):
        test_a_preempted_mean_begins_anew()


def test_a_mean_has_one_order_of_addition() -> None:
    """Numbers whose sum depends on the order: the cuts do not show."""
    hidden = np.random.default_rng(0).normal(0, 1, (200, 7)).astype(np.float32) * np.float32(10) ** np.arange(-20, 15, 5, np.float32)
    found = set()
    for cuts in ([200], [1] * 200, [3, 97, 100], [199, 1]):
        pool = Pool("mean")
        for part in np.split(hidden, np.cumsum(cuts)[:-1]):
            pool.add(part)
        found.add(pool.vector())
    assert len(found) == 1
    assert np.allclose(np.frombuffer(found.pop(), "<f4"), hidden.astype(np.float64).mean(0), rtol=1e-6)


@pytest.mark.parametrize("fields", [{"max_tokens": 1}, {"score_from": 0}], ids=["generates", "scores"])
def test_it_does_nothing_beside(fields: dict) -> None:
    scheduler, _ = make()
    with pytest.raises(InvalidRequest, match="neither generates nor scores") as refused:
        scheduler.submit(request("a", [1, 2], "mean", **fields))
    assert refused.value.field == "embed"


def test_a_cancelled_one_has_no_vector() -> None:
    scheduler, runner = make(prefill_chunk=16)
    scheduler.submit(request("a", words(1, 100)))
    plan = scheduler.plan()
    scheduler.settle(plan, runner.run(plan))
    output = scheduler.cancel("a")
    assert (output.finish, output.vector) == ("cancelled", b"")


# Whole texts: encoders


def whole(**options) -> Scheduler:
    return Scheduler(NoCache(), context=400, vocab_size=VOCAB, whole=True, **options)


def steps(scheduler: Scheduler, runner: FakeRunner) -> list[list[int]]:
    """Lengths of the texts of each step; each vector is right."""
    found = []
    prompts = {name: sequence.request for name, sequence in scheduler._sequences.items()}
    while scheduler.busy:
        ahead = sum(count for _, count in scheduler.outlook())
        plan = scheduler.plan()
        assert all((span.start, span.count) == (0, len(span.known)) for span in plan.spans)
        assert plan.rows <= ahead, "the next step was larger than foretold"
        found.append([span.count for span in plan.spans])
        rows = ((span.request.id, runner.hidden(span.known, span.count - span.wanted, span.count)) for span in plan.spans)
        result = {name: Sampled([], hidden=hidden) for name, hidden in rows}
        for output in scheduler.settle(plan, result):
            assert output.finish == "stop"
            assert output.vector == expected(prompts[output.id].prompt, prompts[output.id].embed)
    return found


def test_texts_are_whole_in_one_step_and_steps_within_the_chunk() -> None:
    scheduler, runner = whole(prefill_chunk=100), FakeRunner(VOCAB)
    for number, length in enumerate([30, 40, 40, 100, 250, 5, 1]):
        scheduler.submit(request(f"r{number}", words(number, length), ("mean", "cls", "last")[number % 3], arrival=float(number)))
    assert steps(scheduler, runner) == [[30, 40], [40], [100], [250], [5, 1]]


def test_no_more_texts_run_at_once_than_allowed() -> None:
    scheduler, runner = whole(max_running=3), FakeRunner(VOCAB)
    for number in range(7):
        scheduler.submit(request(f"r{number}", words(number, 4), arrival=float(number)))
    assert steps(scheduler, runner) == [[4] * 3, [4] * 3, [4]]


def test_an_encoder_refuses_what_generates() -> None:
    scheduler = whole()
    for wrong in (request("a", [1], None, max_tokens=3), msgspec.structs.replace(request("a", [1], None), score_from=0)):
        with pytest.raises(InvalidRequest, match="does not generate"):
            scheduler.submit(wrong)
    with pytest.raises(ContextLengthExceeded):
        scheduler.submit(request("a", words(0, 401)))
    assert not scheduler.busy
