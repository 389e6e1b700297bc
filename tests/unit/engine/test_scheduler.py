"""The scheduler with a model that knows which tokens lie in which slot; the cache is audited after every step."""

from __future__ import annotations

import random

import pytest
from fake_runner import FakeRunner

from pitstop.engine import pace, protocol
from pitstop.engine.scheduler import Scheduler
from pitstop.errors import ContextLengthExceeded, InvalidRequest
from pitstop.kv.cache import KVCache
from pitstop.kv.capacity import longest_stream
from pitstop.types import Output, Request, SamplingParams

VOCAB = 1000


def make(pages=32, tails=16, *, lead_pages=0, cached_tails=4, prefix=True, **options) -> tuple[Scheduler, FakeRunner]:
    options.setdefault("context", longest_stream(pages, lead_pages))
    cache = KVCache(pages, tails, lead_pages=lead_pages, prefix=prefix, cached_tails=cached_tails)
    return Scheduler(cache, vocab_size=VOCAB, **options), FakeRunner(VOCAB, lead_pages)


def request(name: str, prompt: list[int], max_tokens: int = 8, **fields) -> Request:
    params = {key: fields.pop(key) for key in ("min_tokens", "stop_token_ids", "prompt_logprobs") if key in fields}
    return Request(id=name, prompt=prompt, params=SamplingParams(max_tokens=max_tokens, **params), **fields)


def step(scheduler: Scheduler, runner: FakeRunner) -> list[Output]:
    plan = scheduler.plan()
    scheduler.cache.check()
    outputs = scheduler.settle(plan, runner.run(plan)) if plan.spans else []
    scheduler.cache.check()
    return outputs


def finish(scheduler: Scheduler, runner: FakeRunner, limit: int = 10_000) -> dict[str, list[Output]]:
    outputs: dict[str, list[Output]] = {}
    for _ in range(limit):
        if not scheduler.busy:
            return outputs
        for output in step(scheduler, runner):
            outputs.setdefault(output.id, []).append(output)
    raise AssertionError("the scheduler makes no progress")


def tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def expected(prompt: list[int], count: int) -> list[int]:
    known = list(prompt)
    for _ in range(count):
        known.append(FakeRunner(VOCAB).next_token(known))
    return known[len(prompt) :]


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 255, 256, 300])
@pytest.mark.parametrize("chunk", [16, 128, 512])
@pytest.mark.parametrize("lead_pages", [0, 1])
def test_answer_does_not_depend_on_chunking(length: int, chunk: int, lead_pages: int) -> None:
    scheduler, runner = make(prefill_chunk=chunk, lead_pages=lead_pages)
    prompt = words(1, length)
    scheduler.submit(request("a", prompt, 150))
    outputs = finish(scheduler, runner)["a"]
    assert tokens(outputs) == expected(prompt, 150)
    assert [o.finish for o in outputs if o.finish] == ["length"]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("lead_pages", [0, 1])
def test_random_workloads_lose_nothing(seed: int, lead_pages: int) -> None:
    """Shared prefixes, little memory, cancels, priorities: every answer is right, every request ends once, every slot comes back."""
    rng = random.Random(seed)
    pages = rng.choice([4, 6, 12])
    scheduler, runner = make(
        pages, tails=rng.choice([8, 12]), cached_tails=rng.choice([0, 2, 5]), prefix=rng.random() < 0.8,
        prefill_chunk=rng.choice([16, 100, 400]), max_running=rng.choice([1, 3, 4]), lead_pages=lead_pages,
    )  # fmt: skip
    trunks = [words(seed * 10 + i, 300) for i in range(3)]
    ended: dict[str, list[Output]] = {}
    sent: dict[str, Request] = {}
    cancelled = set()
    for turn in range(400):
        if len(sent) < 40 and rng.random() < 0.4:
            trunk = rng.choice(trunks)
            prompt = trunk[: rng.randint(1, 300)] + words(rng.randrange(10), rng.randint(0, 40))
            r = request(f"r{len(sent)}", prompt, rng.randint(1, 60), priority=rng.randint(0, 2), arrival=float(turn))
            sent[r.id] = r
            scheduler.submit(r)
        if rng.random() < 0.05 and sent:
            name = rng.choice(list(sent))
            if output := scheduler.cancel(name):
                cancelled.add(name)
                ended.setdefault(name, []).append(output)
            scheduler.cache.check()
        for output in step(scheduler, runner):
            ended.setdefault(output.id, []).append(output)
    for name, outputs in finish(scheduler, runner).items():
        ended.setdefault(name, []).extend(outputs)
    assert ended.keys() == sent.keys()
    for name, outputs in ended.items():
        assert sum(o.finish is not None for o in outputs) == 1
        answer = expected(sent[name].prompt, sent[name].params.max_tokens)
        assert tokens(outputs) == (answer[: len(tokens(outputs))] if name in cancelled else answer)
    cache = scheduler.cache
    assert cache.pages.free + cache.pages.cached == cache.pages.total
    assert cache.tails.free + cache.tails.cached == cache.tails.total


@pytest.mark.parametrize("lead_pages", [0, 1])
def test_little_memory_preempts_and_answers_stay_right(lead_pages: int) -> None:
    scheduler, runner = make(pages=4, tails=8, max_running=4, lead_pages=lead_pages)
    prompts = {f"r{i}": words(i, 100 + i) for i in range(4)}
    for name, prompt in prompts.items():
        scheduler.submit(request(name, prompt, 200))
    outputs = finish(scheduler, runner)
    assert scheduler.preemptions > 0
    for name, prompt in prompts.items():
        assert tokens(outputs[name]) == expected(prompt, 200)


@pytest.mark.parametrize("lead_pages", [0, 1])
def test_prefix_is_reused(lead_pages: int) -> None:
    """A repeated prompt recomputes one token; one that continues it, its own tokens; a branch, at most the rest of a segment."""
    scheduler, runner = make(lead_pages=lead_pages)
    prompt = words(3, 300)
    scheduler.submit(request("cold", prompt, 1))
    assert finish(scheduler, runner)["cold"][-1].cached_tokens == 0
    scheduler.submit(request("again", prompt, 1))
    assert finish(scheduler, runner)["again"][-1].cached_tokens == 299
    scheduler.submit(request("longer", prompt + words(4, 50), 1))
    assert finish(scheduler, runner)["longer"][-1].cached_tokens == 300
    scheduler.submit(request("branch", prompt[:200] + words(5, 250), 1))  # leaves inside the sealed second segment
    assert finish(scheduler, runner)["branch"][-1].cached_tokens == 128
    scheduler.submit(request("branch again", prompt[:200] + words(6, 250), 1))  # the branch point was kept
    assert finish(scheduler, runner)["branch again"][-1].cached_tokens == 200


def test_a_prompt_of_whole_segments_is_reused_but_for_one_token() -> None:
    scheduler, runner = make()
    prompt = words(3, 256)
    for name in ("cold", "again"):
        scheduler.submit(request(name, prompt, 1))
        outputs = finish(scheduler, runner)[name]
    assert outputs[-1].cached_tokens == 255


def test_next_turn_reuses_the_answer() -> None:
    scheduler, runner = make()
    prompt = words(8, 140)
    scheduler.submit(request("first", prompt, 30))
    answer = tokens(finish(scheduler, runner)["first"])
    scheduler.submit(request("second", prompt + answer + words(9, 10), 1))
    assert finish(scheduler, runner)["second"][-1].cached_tokens == 140 + 29  # the last answer token was never computed


def test_choices_share_their_prompt() -> None:
    scheduler, runner = make()
    prompt = words(2, 200)
    for choice in range(4):
        scheduler.submit(request(f"r-{choice}", prompt, 5, group="r", choice=choice))
    outputs = finish(scheduler, runner)
    assert [outputs[f"r-{i}"][-1].cached_tokens for i in range(4)] == [0, 199, 199, 199]
    assert runner.rows == 200 + 3 + 4 * 4


def test_prefix_cache_can_be_switched_off() -> None:
    scheduler, runner = make(prefix=False)
    for name in ("a", "b"):
        scheduler.submit(request(name, words(1, 200), 1))
        assert finish(scheduler, runner)[name][-1].cached_tokens == 0
    assert scheduler.cache.pages.free == scheduler.cache.pages.total


def test_priority_goes_first_and_waiting_ages() -> None:
    scheduler, runner = make(max_running=1, ageing=10.0)
    scheduler.submit(request("old", [1], 1, priority=1, arrival=0.0))
    scheduler.submit(request("urgent", [2], 1, priority=0, arrival=5.0))  # 5 s later, one step more urgent: goes first
    scheduler.submit(request("urgent but late", [3], 1, priority=0, arrival=11.0))  # the old one has aged past it
    order = [output.id for _ in range(3) for output in step(scheduler, runner)]
    assert order == ["urgent", "old", "urgent but late"]


def test_deadline_ends_queued_and_running() -> None:
    scheduler, runner = make(max_running=1)
    scheduler.submit(request("running", [1], 100, deadline=10.0))
    scheduler.submit(request("queued", [2], 100, deadline=20.0, arrival=1.0))
    step(scheduler, runner)
    assert scheduler.expire(9.9) == []
    assert [(o.id, o.finish) for o in scheduler.expire(20.0)] == [("running", "timeout"), ("queued", "timeout")]
    assert not scheduler.busy
    scheduler.cache.check()


def test_stop_tokens_end_and_min_tokens_delay() -> None:
    prompt = [5, 6, 7]
    answer = expected(prompt, 6)
    scheduler, runner = make(end_tokens=frozenset({answer[1]}))
    scheduler.submit(request("a", prompt, 6))
    outputs = finish(scheduler, runner)["a"]
    assert tokens(outputs) == answer[:2]
    assert outputs[-1].finish == "stop"
    scheduler.submit(request("b", prompt, 6, stop_token_ids=(answer[3],), min_tokens=3))
    assert tokens(finish(scheduler, runner)["b"]) == answer[:4]


@pytest.mark.parametrize("chunk", [7, 512])
def test_prompt_scores_cover_every_token_once(chunk: int) -> None:
    scheduler, runner = make(prefill_chunk=chunk)
    prompt = words(1, 150)
    for name, count in (("cold", 2), ("warm", 2), ("only scores", 0)):
        scheduler.submit(request(name, prompt, count, prompt_logprobs=0))
        outputs = finish(scheduler, runner)[name]
        assert [score.token for score in outputs[0].prompt_logprobs] == prompt[1:]
        assert outputs[0].cached_tokens == 0
        assert tokens(outputs) == expected(prompt, count)
        assert outputs[-1].finish == "length"


@pytest.mark.parametrize("chunk", [7, 512])
@pytest.mark.parametrize("start", [0, 1, 127, 128, 140, 149])
def test_a_score_brings_every_row_asked_for_and_takes_only_what_comes_before_from_the_cache(chunk: int, start: int) -> None:
    scheduler, runner = make(prefill_chunk=chunk)
    prompt = words(1, 150)
    scheduler.submit(request("answer", prompt, 2))
    finish(scheduler, runner)
    for name in ("first", "again"):
        scheduler.submit(request(name, prompt, 0, score_from=start))
        [output] = finish(scheduler, runner)[name]
        assert output.logits == runner.logits(prompt, start, 150)
        assert output.cached_tokens <= start
        assert (output.tokens, output.finish) == ([], "length")
    assert output.cached_tokens == start


def test_a_preempted_score_brings_its_rows_once() -> None:
    """Answers grow into the memory that a slow score holds."""
    scheduler, runner = make(pages=9, tails=24, prefill_chunk=7)
    prompts = {f"r{i}": words(i, 7) for i in range(4)}
    for name, prompt in prompts.items():
        scheduler.submit(request(name, prompt, 200))
    scheduler.submit(request("score", long := words(9, 900), 0, score_from=10, arrival=1.0))
    outputs = finish(scheduler, runner)
    assert "score" in scheduler.take_changes()[1]
    assert [output.logits for output in outputs["score"]] == [runner.logits(long, 10, 900)]
    for name, prompt in prompts.items():
        assert tokens(outputs[name]) == expected(prompt, 200)


def test_an_ended_score_brings_nothing() -> None:
    scheduler, runner = make(prefill_chunk=50)
    scheduler.submit(request("a", words(1, 150), 0, score_from=0))
    step(scheduler, runner)
    output = scheduler.cancel("a")
    assert (output.finish, output.logits) == ("cancelled", b"")
    assert not scheduler.busy
    scheduler.cache.check()


def test_a_score_that_no_message_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_LOGITS", 100 * 4 * VOCAB)
    scheduler, _ = make()
    scheduler.submit(request("fits", words(1, 150), 0, score_from=50))
    for start in (49, -1, 150):
        with pytest.raises(InvalidRequest, match="a score has 1 to 100 rows of its prompt and max_tokens 0") as refused:
            scheduler.submit(request("a", words(1, 150), 0, score_from=start))
        assert refused.value.field == "score_from"
    with pytest.raises(InvalidRequest, match="max_tokens 0"):
        scheduler.submit(request("a", words(1, 150), 1, score_from=149))


def test_what_can_never_run_is_refused() -> None:
    scheduler, _ = make(pages=2, context=300)
    with pytest.raises(ContextLengthExceeded, match="300 tokens; the request has 290 prompt tokens and asks for 20 more"):
        scheduler.submit(request("a", words(1, 290), 20))
    with pytest.raises(InvalidRequest, match="token ids must lie in"):
        scheduler.submit(request("a", [VOCAB]))
    with pytest.raises(InvalidRequest, match="no tokens"):
        scheduler.submit(request("a", []))
    scheduler.submit(request("a", [1]))
    with pytest.raises(InvalidRequest, match="in use"):
        scheduler.submit(request("a", [1]))


def test_long_prompt_does_not_stall_decodes() -> None:
    """A running answer gets a token in every step while a long prompt is computed in chunks."""
    scheduler, runner = make(prefill_chunk=64)
    scheduler.submit(request("short", [1, 2], 30))
    step(scheduler, runner)
    scheduler.submit(request("long", words(1, 1000), 1, arrival=1.0))
    for _ in range(15):
        assert [output.id for output in step(scheduler, runner)] == ["short"]
    assert scheduler.running == 2


def test_nobody_overtakes_one_that_waits_for_memory() -> None:
    scheduler, runner = make(pages=4, tails=8, prefix=False)
    scheduler.submit(request("holder", words(1, 300), 100))
    step(scheduler, runner)
    scheduler.submit(request("big", words(2, 500), 1, arrival=1.0))
    scheduler.submit(request("small", words(3, 10), 1, arrival=2.0))
    step(scheduler, runner)
    assert (scheduler.running, scheduler.waiting) == (1, 2)


def test_a_probe_neither_uses_nor_leaves_anything_in_the_prefix_index() -> None:
    """A page from better times could hide that the model computes nonsense now."""
    scheduler, runner = make()
    prompt = words(3, 300)
    scheduler.submit(request("user", prompt, 4))
    finish(scheduler, runner)
    listed = scheduler.cache.index.listed()
    rows, hits = runner.rows, scheduler.cached_tokens
    scheduler.submit(request("probe", prompt, 4, probe=True))
    outputs = finish(scheduler, runner)["probe"]
    assert tokens(outputs) == expected(prompt, 4)
    assert (runner.rows - rows, scheduler.cached_tokens) == (303, hits)
    assert scheduler.cache.index.listed() == listed
    scheduler.submit(request("new", other := words(4, 300), 4, probe=True))
    finish(scheduler, runner)
    scheduler.submit(request("after", other, 4))
    assert finish(scheduler, runner)["after"][0].cached_tokens == 0


@pytest.mark.parametrize("cut", [1, 40, 149])
@pytest.mark.parametrize("length", [1, 127, 128, 200])
def test_an_answer_that_was_begun_elsewhere_goes_on(length: int, cut: int) -> None:
    scheduler, runner = make(prefill_chunk=100)
    prompt = words(5, length)
    whole = expected(prompt, 150)
    scheduler.submit(request("a", prompt, 150, emitted=whole[:cut], prompt_logprobs=0))
    outputs = finish(scheduler, runner)["a"]
    assert tokens(outputs) == whole[cut:]
    assert [output.prompt_logprobs for output in outputs] == [None] * (150 - cut), "they came with the first token"
    assert [output.finish for output in outputs if output.finish] == ["length"]
    assert runner.rows == length + 149, "recomputed as prefill, nothing twice"


def test_what_cannot_go_on_is_refused() -> None:
    scheduler, _ = make()
    for emitted, why in (([1] * 8, "8 of 8 tokens"), ([VOCAB], "emitted token ids")):
        with pytest.raises(InvalidRequest, match=why):
            scheduler.submit(request("a", [1], 8, emitted=emitted))
    assert not scheduler.busy


@pytest.mark.parametrize("seed", range(20))
def test_the_outlook_is_never_less_than_the_plan(seed: int) -> None:
    """The watchdog's limit is made of it: a step that does more than was foreseen would be shot."""
    rng = random.Random(seed)
    scheduler, runner = make(pages=rng.choice([8, 32]), tails=8, prefill_chunk=rng.choice([16, 200]), max_running=4)
    trunk = words(seed, 600)
    for name in range(12):
        scheduler.submit(request(str(name), trunk[: rng.randrange(1, 600)] + words(name, 5), rng.randrange(1, 40)))
    while scheduler.busy:
        outlook, alone, preemptions = scheduler.outlook(), not scheduler.waiting, scheduler.preemptions
        plan = scheduler.plan()
        foreseen, done = pace.total(outlook, 0.01), pace.total(((span.start, span.count) for span in plan.spans), 0.01)
        assert foreseen >= done
        if alone and scheduler.preemptions == preemptions:
            assert foreseen == done
        scheduler.settle(plan, runner.run(plan))
    assert scheduler.outlook() == []


def test_an_answer_that_goes_on_may_use_the_prefix_index_though_its_prompt_was_scored() -> None:
    scheduler, runner = make()
    prompt = words(6, 300)
    scheduler.submit(request("before", prompt, 4))
    finish(scheduler, runner)
    rows = runner.rows
    scheduler.submit(request("a", prompt, 8, emitted=expected(prompt, 3), prompt_logprobs=0))
    assert tokens(finish(scheduler, runner)["a"]) == expected(prompt, 8)[3:]
    assert runner.rows - rows < 128
