"""Steps that are launched before the one before them is waited for: the same answers, and no slot is lost whatever happens meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from fake_runner import FakeRunner

from pitstop.engine.scheduler import Scheduler
from pitstop.engine.speculation import Speculation
from pitstop.kv.cache import KVCache
from pitstop.types import Output, Request, SamplingParams, StepPlan, StepResult

VOCAB = 1000


class Device:
    """A scheduler, and a runner that runs a step as soon as it is launched, before the host has heard of the step before."""

    def __init__(self, pages: int = 32, tails: int = 16, **options) -> None:
        cache = KVCache(pages, tails, cached_tails=4)
        self.runner = FakeRunner(VOCAB)
        self.scheduler = Scheduler(cache, context=pages * 128, vocab_size=VOCAB, **options)
        self.followed = 0
        self.flight: tuple[StepPlan, StepResult] | None = None

    def step(self, meanwhile=lambda: None) -> list[Output]:
        """meanwhile: what happens while two steps are on their way."""
        plan, result = self.flight or self.launch(self.scheduler.plan(), {})
        self.flight = None
        if following := plan.spans and self.scheduler.follow(plan):
            assert [plan.spans[row].request for row in following.follows] == [span.request for span in following.spans]
            self.followed += 1
            self.flight = self.launch(following, result)
        self.scheduler.cache.check()
        meanwhile()
        self.scheduler.cache.check()
        self.scheduler.drop_ended(plan)
        outputs = self.scheduler.settle(plan, result) if plan.spans else []
        self.scheduler.cache.check()
        return outputs

    def launch(self, plan: StepPlan, before: StepResult) -> tuple[StepPlan, StepResult]:
        """The device knows the tokens of the step before."""
        chosen = {span.request.id: before[span.request.id].tokens for span in plan.spans} if plan.follows else {}
        spans = [replace(span, known=span.known + chosen.get(span.request.id, [])) for span in plan.spans]
        return plan, self.runner.run(StepPlan(spans, plan.copies))

    def answers(self, limit: int = 10_000) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for _ in range(limit):
            if not self.scheduler.busy:
                return found
            for output in self.step():
                found.setdefault(output.id, []).extend(output.tokens)
        raise AssertionError("no progress")


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


def request(name: str, prompt: list[int], max_tokens: int = 8, **fields) -> Request:
    params = {key: fields.pop(key) for key in ("min_tokens", "stop_token_ids", "prompt_logprobs") if key in fields}
    return Request(id=name, prompt=prompt, params=SamplingParams(max_tokens=max_tokens, **params), **fields)


def expected(prompt: list[int], count: int, stop: int = -1) -> list[int]:
    known = list(prompt)
    while len(known) < len(prompt) + count and (len(known) == len(prompt) or known[-1] != stop):
        known.append(FakeRunner(VOCAB).next_token(known))
    return known[len(prompt) :]


def test_a_lone_answer_is_launched_ahead_to_its_end_and_not_beyond() -> None:
    device = Device()
    device.scheduler.submit(request("a", words(1, 100), 60))
    assert device.answers() == {"a": expected(words(1, 100), 60)}
    assert device.followed == 58, "all but the prompt's, the first after it, and none after the last"
    assert device.runner.rows == 100 + 59
    assert device.flight is None


def test_an_end_that_nobody_foresaw_costs_one_row_and_no_slot() -> None:
    device = Device()
    prompt = words(2, 120)
    stop = expected(prompt, 9)[-1]
    device.scheduler.submit(request("a", prompt, 60, stop_token_ids=(stop,)))
    device.scheduler.submit(request("b", words(3, 40), 30))
    assert device.answers() == {"a": expected(prompt, 9), "b": expected(words(3, 40), 30)}
    assert device.runner.rows == 120 + 8 + 40 + 29 + 1


def test_whoever_comes_is_let_in_by_the_next_plan() -> None:
    device = Device()
    device.scheduler.submit(request("a", words(1, 10), 50))
    for _ in range(5):
        device.step()
    assert device.flight is not None
    device.scheduler.submit(request("b", words(2, 10), 50))
    device.step()
    assert device.flight is None, "nothing is launched while somebody might be let in"
    assert [output.id for output in device.step()] == ["a", "b"]


def test_whoever_cannot_be_let_in_holds_nobody_up_and_gets_the_first_place() -> None:
    device = Device(max_running=2)
    for name, count in (("a", 20), ("b", 60), ("c", 20)):
        device.scheduler.submit(request(name, words(ord(name), 10), count))
    ends: list[str] = []
    while device.scheduler.busy:
        ends += [output.id for output in device.step() if output.finish]
    assert ends == ["a", "c", "b"]
    assert device.followed > 50


def shut(device: Device) -> None:
    """One runs, and one that is too long for the pages waits."""
    device.scheduler.submit(request("a", words(2, 400), 100))
    device.scheduler.submit(request("long", words(3, 600), 20, priority=1))
    for _ in range(4):
        device.step()


def test_a_newcomer_who_fits_passes_one_that_does_not() -> None:
    device = Device(pages=5)
    shut(device)
    assert device.flight is not None
    device.scheduler.submit(request("new", words(4, 10), 5, priority=0))
    assert "new" in {output.id for _ in range(3) for output in device.step()}


def test_one_that_was_held_passes_one_that_does_not_fit() -> None:
    device, held = Device(pages=5), {"first"}
    device.scheduler.held = lambda request: request.id in held
    device.scheduler.submit(request("first", words(1, 10), 5, priority=-1))
    shut(device)
    held.clear()
    assert "first" in {output.id for _ in range(3) for output in device.step()}


def test_the_outlook_counts_what_is_on_its_way() -> None:
    """The watchdog's limit is made of it."""
    device = Device()
    device.scheduler.submit(request("a", words(1, 10), 50))
    for _ in range(5):
        device.step()
    assert device.flight is not None
    assert device.scheduler.outlook() == [(span.start, 1) for span in device.flight[0].spans]


def test_one_that_waits_for_its_group_is_let_in_once_the_prompt_is_there() -> None:
    device = Device()
    for name in "ab":
        device.scheduler.submit(request(name, [7], 40, group="g"))
    seen = [{output.id for output in device.step()} for _ in range(4)]
    assert {"a", "b"} in seen


def test_one_that_is_held_is_asked_again_each_step() -> None:
    device = Device(max_running=1)
    held = {"b"}
    device.scheduler.held = lambda request: request.id in held
    device.scheduler.submit(request("b", words(2, 10), 5, priority=-1))
    device.scheduler.submit(request("a", words(1, 10), 50))
    device.scheduler.max_running = 2
    device.step()
    device.step()
    assert device.flight is None
    held.clear()
    assert {output.id for output in device.step()} == {"a", "b"}


def test_steps_with_guesses_wait_for_their_tokens() -> None:
    device = Device()
    device.scheduler.speculation = Speculation(4)
    device.scheduler.submit(request("a", words(1, 10), 20))
    device.answers()
    assert device.followed == 0


def test_where_slots_are_short_nothing_is_taken_ahead() -> None:
    device = Device(pages=1, tails=1)
    device.scheduler.submit(request("a", words(1, 100), 28))
    found: list[int] = []
    while device.scheduler.busy:
        device.scheduler.cache.check()
        found += [token for output in device.step() for token in output.tokens]
    assert found == expected(words(1, 100), 28)


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_events_gives_the_same_answers_and_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    pages, tails = rng.choice([4, 8, 32]), rng.choice([4, 12])
    device = Device(pages, tails, prefill_chunk=rng.choice([16, 200]), max_running=rng.choice([2, 4, 9]))
    trunk, due, found, cancelled = words(seed, 300), {}, {}, set()
    longest = pages * 128 - 60

    def meanwhile() -> None:
        if rng.random() < 0.05 and (live := sorted(set(due) - cancelled)):
            name = rng.choice(live)
            if device.scheduler.cancel(name) is not None:
                cancelled.add(name)

    for number in range(400):
        if number < 200 and rng.random() < 0.15:
            prompt = trunk[: rng.randrange(1, min(300, longest))] + words(number, rng.randrange(1, 5))
            count = rng.randrange(1, 50)
            stop = rng.choice([-1, expected(prompt, count)[-1], expected(prompt, count)[count // 2]])
            name = str(number)
            due[name] = expected(prompt, count, stop)
            device.scheduler.submit(request(name, prompt, count, stop_token_ids=(stop,) if stop >= 0 else (), priority=rng.randrange(2)))
        if device.scheduler.busy or device.flight:
            for output in device.step(meanwhile):
                found.setdefault(output.id, []).extend(output.tokens)
    while device.scheduler.busy:
        for output in device.step():
            found.setdefault(output.id, []).extend(output.tokens)
    assert device.followed > 20
    for name, tokens in due.items():
        assert name in cancelled or found[name] == tokens
        assert found.get(name, []) == tokens[: len(found.get(name, []))]
