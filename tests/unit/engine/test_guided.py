"""Requests whose grammar is being compiled wait, others go on; and what a grammar makes of an answer's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from fake_runner import FakeRunner
from toys import byte_tokens, toy_vocabulary

from pitstop import guide
from pitstop.engine.guided import Guided
from pitstop.engine.sampler import sample
from pitstop.engine.scheduler import Scheduler
from pitstop.errors import InvalidRequest
from pitstop.kv.cache import KVCache
from pitstop.text.tokenizer import token_table
from pitstop.types import Request, Sampled, SamplingParams

TABLE = token_table(toy_vocabulary())
FORM = guide.regex("ab*")


def request(name: str, grammar: str = "", **fields) -> Request:
    return Request(id=name, prompt=[1, 2, 3], params=SamplingParams(max_tokens=4, grammar=grammar), **fields)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Until it is set nothing gets compiled."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def guided(gate: threading.Event) -> Guided:
    def table():
        assert gate.wait(60)
        return TABLE

    return Guided(table, len(TABLE.data), live=2)


@pytest.fixture
def scheduler(guided: Guided) -> Scheduler:
    scheduler = Scheduler(KVCache(8, 8), context=512, vocab_size=len(TABLE.data))
    scheduler.held = guided.held
    return scheduler


def submit(scheduler: Scheduler, guided: Guided, new: Request) -> None:
    scheduler.submit(new)
    guided.begin(new)


def test_a_request_waits_for_its_grammar_and_others_go_on(scheduler: Scheduler, guided: Guided, gate: threading.Event) -> None:
    submit(scheduler, guided, request("form", FORM, arrival=0.0))
    assert scheduler.stalled
    assert not scheduler.plan().spans
    submit(scheduler, guided, request("free", arrival=1.0))
    assert not scheduler.stalled
    plan = scheduler.plan()
    assert [span.request.id for span in plan.spans] == ["free"]
    assert (scheduler.running, scheduler.waiting) == (1, 1)
    scheduler.settle(plan, FakeRunner(len(TABLE.data)).run(plan))
    assert not scheduler.stalled
    gate.set()
    while guided.held(request("form", FORM)):
        guided.wait(60)
    assert {span.request.id for span in scheduler.plan().spans} == {"free", "form"}
    assert not guided.held(request("other", FORM))


def test_a_request_that_waits_for_its_grammar_can_be_cancelled_and_times_out(scheduler: Scheduler, guided: Guided) -> None:
    submit(scheduler, guided, request("a", FORM))
    submit(scheduler, guided, request("b", FORM, deadline=5.0))
    assert scheduler.cancel("a").finish == "cancelled"
    assert [output.finish for output in scheduler.expire(6.0)] == ["timeout"]
    assert not scheduler.busy
    assert not scheduler.stalled


def test_a_compiled_grammar_holds_nobody(guided: Guided, gate: threading.Event) -> None:
    gate.set()
    guided.check(FORM, "grammar")
    guided.begin(request("a", FORM))
    assert not guided.held(request("a", FORM))


def test_a_grammar_that_cannot_be_compiled_holds_nobody_for_ever(guided: Guided, gate: threading.Event) -> None:
    gate.set()
    bad = request("a", "%llguidance {}\nstart: missing\n")
    guided.begin(bad)
    while guided.held(bad):
        guided.wait(60)
    with pytest.raises(InvalidRequest, match="missing"):
        guided.of(bad)


def test_the_state_of_more_answers_than_are_kept_is_made_again(guided: Guided, gate: threading.Event) -> None:
    gate.set()
    asked = [request(str(i), FORM) for i in range(4)]
    for text in (b"", b"a", b"ab"):
        tokens = byte_tokens(text)
        masks = {guided.of(one).allowed(tokens).tobytes() for one in asked}
        assert len(masks) == 1
    assert guided.of(asked[3]) is guided.of(asked[3])


def test_nothing_is_kept_of_those_that_went_away_while_they_waited(scheduler: Scheduler, guided: Guided, gate: threading.Event) -> None:
    forms = [guide.regex(f"a{{{count}}}") for count in range(1, 9)]
    for count, form in enumerate(forms):
        submit(scheduler, guided, request(f"gone-{count}", form))
        scheduler.cancel(f"gone-{count}")
    last = request("last", FORM)
    guided.begin(last)  # one thread compiles one after the other
    gate.set()
    while guided.held(last):
        guided.wait(60)
    assert not guided._compiling


def test_it_waits_for_what_is_compiled_not_for_what_has_been(guided: Guided, gate: threading.Event) -> None:
    gate.set()
    early, late = request("early", FORM), request("late", guide.regex("bc*"))
    guided.begin(early)  # and it goes away
    while guided._compiling and not all(future.done() for future in guided._compiling.values()):
        guided.wait(60)
    free, real = threading.Event(), guided._guides.guide
    guided._guides.guide = lambda grammar: (free.wait(60), real(grammar))[1]
    guided.begin(late)
    begun = time.monotonic()
    guided.wait(0.2)
    assert time.monotonic() - begun > 0.15
    free.set()


def test_a_complete_answer_stops_with_its_last_token_and_a_dead_end_is_an_error(scheduler: Scheduler) -> None:
    for name in ("whole", "dead", "on"):
        scheduler.submit(request(name))
    plan = scheduler.plan()
    result = {"whole": Sampled([7], complete=True), "dead": Sampled([], error="no way on"), "on": Sampled([9])}
    outputs = {output.id: output for output in scheduler.settle(plan, result)}
    assert (outputs["whole"].tokens, outputs["whole"].finish, outputs["whole"].complete) == ([7], "stop", True)
    assert (outputs["dead"].tokens, outputs["dead"].finish, outputs["dead"].message) == ([], "error", "no way on")
    assert (outputs["on"].tokens, outputs["on"].finish, outputs["on"].complete) == ([9], None, False)
    scheduler.cache.check()


class Only:
    """A form that allows some tokens, wherever."""

    def __init__(self, *tokens: int) -> None:
        self.mask = np.isin(np.arange(64), tokens)

    def allowed(self, tokens: list[int]) -> np.ndarray:
        return self.mask

    def allows(self, tokens: list[int], token: int) -> bool:
        return self.mask[token]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_what_is_allowed_is_chosen_whatever_bias_and_penalties_say(temperature: float) -> None:
    logits = np.linspace(0, 50, 64, dtype=np.float32)
    for bias in ({}, {3: 100.0, 60: 100.0}, {3: -100.0, 5: -100.0}):
        params = SamplingParams(temperature=temperature, logit_bias=bias, repetition_penalty=1.5, top_p=0.9, top_k=3, max_tokens=100)
        drawn = {sample(logits, params, [60] * position, 0, 0, frozenset(), Only(3, 5)) for position in range(1, 20)}
        assert drawn <= {3, 5}
        if temperature == 0.0:
            assert drawn == ({3} if 3 in bias and bias[3] > 0 else {5})
    assert logits[63] == 50


@pytest.mark.parametrize("params", [{}, {"top_p": 0.8}, {"top_k": 4}, {"min_p": 0.1}, {"logit_bias": {7: -100.0, 63: 5.0}}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draw_within_a_form_is_one_from_logits_that_forbid_the_rest(temperature: float, params: dict) -> None:
    logits = np.random.default_rng(0).normal(0, 2, 64).astype(np.float32)
    form = Only(*range(3, 60, 4), 63)
    barred = np.where(form.mask, logits, np.float32(-np.inf))
    for position in range(1, 100):
        sampling = SamplingParams(temperature=temperature, seed=1, max_tokens=100, **params)
        drawn = sample(logits, sampling, [1] * position, 0, 0, frozenset(), form)
        assert drawn == sample(barred, sampling, [1] * position, 0, 0, frozenset())


@pytest.mark.parametrize("field", ["ignore_eos", "min_tokens"])
def test_what_contradicts_a_grammar_is_refused(field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(grammar=FORM, **{field: 1})
    assert refused.value.field == field
