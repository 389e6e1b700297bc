"""Guessed tokens in steps of decodes: how many are worth it, and that answers, slots and counts are as without them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from fake_runner import FakeRunner

from pitstop.engine import pace
from pitstop.engine import scheduler as scheduler_module
from pitstop.engine.lookup import Lookup
from pitstop.engine.scheduler import Scheduler
from pitstop.engine.speculation import MEMORY, Speculation
from pitstop.kv.cache import KVCache
from pitstop.kv.capacity import longest_stream
from pitstop.types import SEGMENT, Output, Request, SamplingParams, StepPlan

VOCAB = 1000


class All(Speculation):
    """Computes whatever is guessed."""

    def share(self, chances: list[list[float]]) -> list[int]:
        return [len(each) for each in chances]


def make(repeats: float, pages=32, tails=16, *, most=5, lead_pages=0, cached_tails=4, **options) -> tuple[Scheduler, FakeRunner]:
    options.setdefault("context", longest_stream(pages, lead_pages))
    scheduler = Scheduler(KVCache(pages, tails, lead_pages=lead_pages, cached_tails=cached_tails), vocab_size=VOCAB, **options)
    scheduler.speculation = All(most)
    return scheduler, FakeRunner(VOCAB, lead_pages, repeats)


def request(name: str, prompt: list[int], max_tokens: int = 8, **fields) -> Request:
    params = {key: fields.pop(key) for key in ("min_tokens", "stop_token_ids", "prompt_logprobs", "ignore_eos") if key in fields}
    return Request(id=name, prompt=prompt, params=SamplingParams(max_tokens=max_tokens, **params), **fields)


def step(scheduler: Scheduler, runner: FakeRunner) -> tuple[StepPlan, list[Output]]:
    plan = scheduler.plan()
    scheduler.cache.check()
    outputs = scheduler.settle(plan, runner.run(plan)) if plan.spans else []
    scheduler.cache.check()
    return plan, outputs


def finish(scheduler: Scheduler, runner: FakeRunner) -> tuple[dict[str, list[Output]], list[StepPlan]]:
    outputs: dict[str, list[Output]] = {}
    plans = []
    while scheduler.busy:
        plan, new = step(scheduler, runner)
        assert plan.spans, "the scheduler makes no progress"
        plans.append(plan)
        for output in new:
            outputs.setdefault(output.id, []).append(output)
    return outputs, plans


def tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def expected(repeats: float, prompt: list[int], count: int) -> list[int]:
    known, runner = list(prompt), FakeRunner(VOCAB, repeats=repeats)
    for _ in range(count):
        known.append(runner.next_token(known))
    return known[len(prompt) :]


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


@pytest.mark.parametrize("repeats", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("length", [1, 100, 127, 128, 254])
@pytest.mark.parametrize("lead_pages", [0, 1])
def test_answers_are_those_without_guesses(repeats: float, length: int, lead_pages: int) -> None:
    scheduler, runner = make(repeats, lead_pages=lead_pages)
    scheduler.submit(request("a", prompt := words(1, length), 300))
    outputs, plans = finish(scheduler, runner)
    assert tokens(outputs["a"]) == expected(repeats, prompt, 300)
    assert [o.finish for o in outputs["a"] if o.finish] == ["length"]
    guesses = [plan.spans[0] for plan in plans if plan.spans[0].guess]
    accepted = sum(len(o.tokens) - 1 for o in outputs["a"])
    if repeats == 0.0:
        assert accepted == 0
    if repeats == 0.9:
        assert 0 < accepted < sum(len(span.guess) for span in guesses)
    if repeats == 1.0:
        assert len(plans) < 100
    for span in guesses:
        assert (span.start + span.count - 1) % SEGMENT != SEGMENT - 1, "a guessed row filled a segment"
        assert span.start // SEGMENT == (span.start + span.count - 1) // SEGMENT, "a guess crossed a segment's boundary"


@pytest.mark.parametrize("repeats", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(10))
def test_random_workloads_lose_nothing(repeats: float, seed: int) -> None:
    """Shared prefixes, little memory, cancels, preemption: every answer is right, every request ends once, every slot comes back."""
    rng = random.Random(seed)
    scheduler, runner = make(
        repeats, rng.choice([4, 6, 12]), rng.choice([8, 12]), cached_tails=rng.choice([0, 2, 5]), most=rng.choice([1, 4, 16]),
        prefill_chunk=rng.choice([16, 100, 400]), max_running=rng.choice([1, 3, 4]), lead_pages=seed % 2,
    )  # fmt: skip
    trunks = [words(seed * 10 + i, 300) for i in range(3)]
    ended: dict[str, list[Output]] = {}
    sent: dict[str, Request] = {}
    cancelled = set()
    for turn in range(200):
        if len(sent) < 30 and rng.random() < 0.3:
            prompt = rng.choice(trunks)[: rng.randint(1, 300)] + words(rng.randrange(10), rng.randint(0, 40))
            r = request(f"r{len(sent)}", prompt, rng.randint(1, 90), priority=rng.randint(0, 2), arrival=float(turn))
            scheduler.submit(r)
            sent[r.id] = r
        if rng.random() < 0.05 and sent and (output := scheduler.cancel(rng.choice(list(sent)))):
            cancelled.add(output.id)
            ended.setdefault(output.id, []).append(output)
            scheduler.cache.check()
        for output in step(scheduler, runner)[1]:
            ended.setdefault(output.id, []).append(output)
    for name, outputs in finish(scheduler, runner)[0].items():
        ended.setdefault(name, []).extend(outputs)
    assert ended.keys() == sent.keys()
    for name, outputs in ended.items():
        assert sum(o.finish is not None for o in outputs) == 1
        answer = expected(repeats, sent[name].prompt, sent[name].params.max_tokens)
        assert tokens(outputs) == (answer[: len(tokens(outputs))] if name in cancelled else answer)
    cache = scheduler.cache
    assert cache.pages.free + cache.pages.cached == cache.pages.total
    assert cache.tails.free + cache.tails.cached == cache.tails.total


def test_preempted_streams_go_on_guessing() -> None:
    scheduler, runner = make(0.95, pages=4, tails=8, max_running=4)
    prompts = {f"r{i}": words(i, 100 + i) for i in range(4)}
    for name, prompt in prompts.items():
        scheduler.submit(request(name, prompt, 200))
    outputs, _ = finish(scheduler, runner)
    assert scheduler.preemptions > 0
    for name, prompt in prompts.items():
        assert tokens(outputs[name]) == expected(0.95, prompt, 200)
        assert any(len(output.tokens) > 1 for output in outputs[name][-20:])


@pytest.mark.parametrize("cut", range(40, 60))
def test_an_answer_ends_where_it_would_without_guesses(cut: int) -> None:
    """By its length, by a stop token and by an end token, none of which is ever followed by another token."""
    prompt = words(4, 60)
    answer = expected(0.97, prompt, 200)
    scheduler, runner = make(0.97, end_tokens=frozenset({answer[cut]}))
    end = answer.index(answer[cut]) + 1
    scheduler.submit(request("length", prompt, cut, ignore_eos=True))
    scheduler.submit(request("stop", prompt, 200, stop_token_ids=(answer[cut],), ignore_eos=True, min_tokens=cut))
    outputs, _ = finish(scheduler, runner)
    assert (tokens(outputs["length"]), outputs["length"][-1].finish) == (answer[:cut], "length")
    late = answer.index(answer[cut], cut - 1) + 1
    assert (tokens(outputs["stop"]), outputs["stop"][-1].finish) == (answer[:late], "stop")
    scheduler, runner = make(0.97, end_tokens=frozenset({answer[cut]}))
    scheduler.submit(request("end", prompt, 200))
    outputs, _ = finish(scheduler, runner)
    assert (tokens(outputs["end"]), outputs["end"][-1].finish) == (answer[:end], "stop")
    scheduler.submit(request("next turn", prompt + answer[:end] + words(9, 10), 1))
    assert finish(scheduler, runner)[0]["next turn"][-1].cached_tokens == 60 + end - 1, "what was computed for sure is in the index"


def test_prompt_scores_come_once_with_the_first_tokens() -> None:
    """A prompt of one token is a decode from the first step on."""
    scheduler, runner = make(1.0)
    scheduler.submit(request("a", [3], 100, prompt_logprobs=0))
    scheduler.submit(request("b", words(2, 30), 100, prompt_logprobs=0))
    outputs, _ = finish(scheduler, runner)
    for name, count in (("a", 0), ("b", 29)):
        scores = [output.prompt_logprobs for output in outputs[name]]
        assert len(scores[0]) == count
        assert scores[1:] == [None] * (len(scores) - 1)


def test_the_first_output_may_have_several_tokens_and_has_the_scores_nevertheless() -> None:
    """Its prompt's last token is alone in its step, so it is guessed after it already."""
    scheduler, _ = make(0.0, prefill_chunk=16)
    runner = Scripted(script := [5, 6, 7, 8] * 10)
    scheduler.submit(request("a", script[:17], 20, prompt_logprobs=0))
    outputs, _ = finish(scheduler, runner)
    assert tokens(outputs["a"]) == script[17:37]
    assert len(outputs["a"][0].tokens) == 6
    assert [len(output.prompt_logprobs or []) for output in outputs["a"]] == [16] + [0] * (len(outputs["a"]) - 1)


def test_a_step_that_computes_a_prompt_computes_no_guess() -> None:
    scheduler, runner = make(1.0, prefill_chunk=16)
    scheduler.submit(request("short", [1, 2], 200))
    for _ in range(30):
        step(scheduler, runner)
    scheduler.submit(request("long", words(1, 200), 1, arrival=1.0))
    plans = [step(scheduler, runner)[0] for _ in range(13)]
    assert all(len(plan.spans) == 2 for plan in plans)
    assert not any(span.guess for plan in plans for span in plan.spans)
    assert step(scheduler, runner)[0].spans[0].guess


@pytest.mark.parametrize("seed", range(10))
def test_the_outlook_is_never_less_than_the_plan(seed: int) -> None:
    rng = random.Random(seed)
    scheduler, runner = make(0.95, pages=rng.choice([8, 32]), tails=8, prefill_chunk=rng.choice([16, 200]), max_running=4)
    trunk = words(seed, 600)
    guessed = 0
    for name in range(12):
        scheduler.submit(request(str(name), trunk[: rng.randrange(1, 600)] + words(name, 5), rng.randrange(1, 90)))
    while scheduler.busy:
        outlook = scheduler.outlook()
        plan = scheduler.plan()
        assert pace.total(outlook, 0.01) >= pace.total(((span.start, span.count) for span in plan.spans), 0.01)
        guessed += sum(len(span.guess) for span in plan.spans)
        scheduler.settle(plan, runner.run(plan))
    assert guessed


def learned(seconds: Callable[[int], float], *rows: int) -> Speculation:
    speculation = Speculation(8)
    for count in rows:
        speculation.took(count, seconds(count))
    return speculation


def test_rows_that_cost_nothing_are_all_taken() -> None:
    assert learned(lambda rows: 5.0, 1, 9).share([[0.9**at for at in range(1, 9)]]) == [7]
    assert learned(lambda rows: 5.0, 5, 45).share([[0.9**at for at in range(1, 9)]] * 5) == [8, 8, 8, 8, 7]


def test_rows_that_cost_what_a_stream_costs_are_not_worth_it() -> None:
    assert learned(lambda rows: rows, 4, 8, 16).share([[0.95, 0.9]] * 4) == [0] * 4


def test_as_many_are_taken_as_make_tokens_come_fastest() -> None:
    """By trying every number."""
    chances = [0.8**at for at in range(1, 9)]
    for cost in (0.05, 0.1, 0.2, 0.4, 0.9):
        rates = [(1 + sum(chances[:count])) / (1 + cost * count) for count in range(8)]
        assert learned(lambda rows, cost=cost: 1 + cost * (rows - 1), *range(1, 10)).share([chances]) == [rates.index(max(rates))]


def test_large_steps_come_in_few_sizes() -> None:
    rng = random.Random(0)
    speculation = learned(lambda rows: 1 + 0.02 * rows, *range(1, 60))
    sizes = {streams + sum(speculation.share([sorted((rng.random() for _ in range(8)), reverse=True) for _ in range(streams)]))
             for streams in range(1, 12) for _ in range(30)}  # fmt: skip
    assert {size for size in sizes if size > 11} <= set(range(12, 100, 4))
    assert len(sizes) > 10


def test_the_likeliest_come_first_whosever_they_are() -> None:
    speculation = learned(lambda rows: 1 + 0.1 * (rows - 3), *range(3, 20))
    assert speculation.share([[0.9, 0.81, 0.73], [0.12, 0.11], []]) == [3, 0, 0]
    assert speculation.share([[0.5, 0.25], [0.9, 0.8], [0.6, 0.2]]) == [1, 2, 1]


def test_without_a_measured_plain_step_nothing_is_guessed_so_that_it_is_measured() -> None:
    speculation = learned(lambda rows: 1.0, 2, 9)
    assert speculation.share([[0.9]]) == [0]
    speculation.took(1, 1.0)
    assert speculation.share([[0.9]]) == [1]
    for _ in range(MEMORY):
        speculation.took(2, 1.0)
    assert speculation.share([[0.9]]) == [0]


def test_a_try_that_was_too_expensive_is_not_repeated_soon() -> None:
    speculation = learned(lambda rows: 1.0, 4)
    tries = 0
    for _ in range(10 * MEMORY):
        counts = speculation.share([[0.6, 0.36]] * 4)
        rows = 4 + sum(counts)
        tries += rows > 4
        speculation.took(rows, rows / 4)
    assert 0 < tries <= 40


def test_a_disturbed_measurement_is_forgiven() -> None:
    speculation = learned(lambda rows: 1.0, 1, 2)
    speculation.took(2, 50.0)
    assert speculation.share([[0.9]]) == [0]
    speculation.took(2, 1.1)
    assert speculation.share([[0.9]]) == [1]


def test_nothing_is_shared_out_where_nothing_is_guessed() -> None:
    speculation = learned(lambda rows: 1.0, 2)
    assert speculation.share([[], []]) == [0, 0]
    assert speculation.share([[0.05], []]) == [0, 0]


def test_a_stream_whose_guesses_fail_computes_none_and_comes_back_when_they_hold() -> None:
    """By the acceptance alone: a row costs a third of a step here. Whether a guess holds is seen without computing it."""
    scheduler, _ = make(0.0)
    scheduler.speculation = learned(lambda rows: 1 + (rows - 1) / 3, *range(1, 10))
    prompt = words(1, 40)
    draw = random.Random(0)
    broken = [token for at in range(0, 38, 2) for token in (*prompt[at : at + 2], draw.randrange(VOCAB))]
    script = prompt + broken + prompt * 3
    runner = Scripted(script)
    scheduler.submit(request("a", prompt, len(script) - 40))
    computed = {}
    while scheduler.busy:
        plan, _ = step(scheduler, runner)
        computed[plan.spans[0].start] = len(plan.spans[0].guess)
    early = [count for start, count in computed.items() if 60 <= start < 96]
    late = [count for start, count in computed.items() if start >= 130 and start % SEGMENT < 120]
    assert sum(early) == 0
    assert min(late[:-1]) > 0


class Scripted(FakeRunner):
    """Goes on by the script."""

    def __init__(self, script: list[int]) -> None:
        super().__init__(VOCAB)
        self.script = script

    def next_token(self, known: list[int]) -> int:
        return self.script[len(known)]


@pytest.mark.parametrize("fault", ["accepted", "filled", "kept"])
def test_a_planted_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong token accepted, a segment filled by a guess, wrong rows kept."""
    accepted, resize = FakeRunner.accepted, KVCache.resize
    if fault == "accepted":
        monkeypatch.setattr(FakeRunner, "accepted", lambda self, span: span.guess + accepted(self, span)[-1:])
    elif fault == "filled":
        monkeypatch.setattr(scheduler_module, "SEGMENT", SEGMENT + 1)
    else:
        monkeypatch.setattr(KVCache, "resize", lambda self, holding, rows: resize(self, holding, max(rows, 0)))
    with pytest.raises(AssertionError):
        test_answers_are_those_without_guesses(0.9, 100, 0)


def test_guesses_are_made_of_known_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up has the sequence's own list: a guess that is not accepted never gets into it."""
    seen = []
    guess = Lookup.guess

    def watched(self: Lookup, count: int) -> list[int]:
        seen.append(list(self._known))
        return guess(self, count)

    monkeypatch.setattr(Lookup, "guess", watched)
    scheduler, runner = make(0.9)
    scheduler.submit(request("a", prompt := words(1, 30), 80))
    finish(scheduler, runner)
    whole = prompt + expected(0.9, prompt, 80)
    assert all(known == whole[: len(known)] for known in seen)
