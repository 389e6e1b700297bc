"""Guessing ahead changes no bit: tokens, log-probabilities, texts and stored segments with it are those without it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from foresight import computed, foresight
from servers import model_server
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams, guide
from pitstop.engine import sampler
from pitstop.engine.graphs import DecodeGraphs
from pitstop.engine.runner import Runner
from pitstop.kv import view
from pitstop.kv.capacity import page_bytes, stream_pages, tail_bytes
from pitstop.types import Request, Sampled

CODECS = ("raw16", "int8", "int4", "adaptive8", "delta8")
EVERYTHING = {
    "temperature": 0.9,
    "top_p": 0.95,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.4,
    "logit_bias": {40: 3.0, 41: -100.0},
    "min_tokens": 30,
}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With heads that every codec takes."""
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "wide.gguf", tied=False, head_dim=32)


def prompts_and_params(count: int = 6, length: int = 150) -> tuple[list[list[int]], list[SamplingParams]]:
    """Answers across a segment's boundary: greedy ones, in which a model of noise soon repeats itself, and drawn ones with all on offer."""
    prompts = [[(7 * i + j * j) % 250 for j in range((20, 60, 127, 128, 200, 3)[i % 6])] for i in range(count)]
    greedy = SamplingParams(temperature=0.0, max_tokens=length, logprobs=3, ignore_eos=True)
    drawn = msgspec.structs.replace(greedy, **EVERYTHING)
    return prompts, [msgspec.structs.replace(drawn if i % 2 else greedy, seed=i) for i in range(count)]


def bits(outputs: list) -> list:
    return [(choice.tokens, choice.logprobs, choice.text) for output in outputs for choice in output.choices]


def answers(expected: list) -> list[list[int]]:
    return [tokens for tokens, _, _ in expected]


def assert_some_came(llm: LLM) -> None:
    stats = llm.engine.stats()
    assert 0 < stats.accepted_tokens < stats.guessed_tokens, stats
    assert stats.steps < stats.generated_tokens
    llm.engine.check()


@pytest.mark.parametrize("backend", ["cpu", pytest.param("ref", marks=pytest.mark.slow)])  # test_bit_exact.py has guesses on both
def test_looked_up_guesses_change_nothing(toy: Path, backend: str) -> None:
    prompts, params = prompts_and_params(length=150 if backend == "cpu" else 40)
    plain = LLM(toy, backend=backend)
    expected = bits(plain.generate(prompts, params))
    with computed():
        llm = LLM(toy, backend=backend, speculate=6)
        assert bits(llm.generate(prompts, params)) == expected
        assert_some_came(llm)
        alone = LLM(toy, backend=backend, speculate=3, max_running=1, prefill_chunk=2)  # steps with guesses have the most rows
        assert bits(alone.generate(prompts, params)) == expected
    assert llm.engine.numerics == plain.engine.numerics
    assert llm.engine.stats().generated_tokens == plain.engine.stats().generated_tokens


@pytest.mark.parametrize("codec", [pytest.param(codec, marks=[pytest.mark.slow] * (codec in ("int8", "adaptive8"))) for codec in CODECS])
def test_no_codec_sees_a_wrong_guess(toy: Path, codec: str) -> None:
    """Cold, from the prefix cache, in small chunks, under preemption, and gone on with what another engine answered."""
    options = {"codec": codec, "guard": "off", "backend": "cpu"}
    prompts, params = prompts_and_params()
    plain = LLM(toy, max_running=1, **options)
    expected = bits(plain.generate(prompts, params))
    store = plain.engine._runner.store
    memory = 7 * tail_bytes(store.codec, store.shape) + stream_pages(350, store.codec.lead_pages) * page_bytes(store.codec, store.shape)
    with foresight(prompts, answers(expected)):
        llm = LLM(toy, speculate=4, prefill_chunk=50, **options)
        assert bits(llm.generate(prompts, params)) == expected
        assert_some_came(llm)
        again = llm.generate(prompts, params)
        assert sum(output.cached_tokens for output in again) > 0.5 * sum(map(len, prompts))
        assert bits(again) == expected, "from the prefix cache"
        scarce = LLM(toy, speculate=4, memory=memory, max_running=4, prefill_chunk=128, cached_tails=0, **options)
        assert bits(scarce.generate(prompts, params)) == expected, "under preemption"
        assert scarce.engine.scheduler.preemptions > 0
        assert_some_came(scarce)
        assert resumed(llm, prompts, params, expected, 60) == [(tokens, scores) for tokens, scores, _ in expected]


def resumed(llm: LLM, prompts: list, params: list, expected: list, cut: int) -> list:
    """What comes after `cut` tokens that were answered elsewhere, joined to them."""
    found = {str(i): (tokens[:cut], scores[:cut]) for i, (tokens, scores, _) in enumerate(expected)}
    for i, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
        llm.engine.submit(Request(id=str(i), prompt=prompt, params=param, emitted=expected[i][0][:cut]))
    while llm.engine.busy:
        for output in llm.engine.step():
            found[output.id] = found[output.id][0] + output.tokens, found[output.id][1] + (output.logprobs or [])
        llm.engine.check()
    return list(found.values())


@pytest.mark.parametrize("wrong", [1, 2, 1000])
def test_choices_differ_as_they_do_without_guesses(toy: Path, wrong: int) -> None:
    """None, some and nearly all guesses come true; the choices are guessed to be as the first one is."""
    params = SamplingParams(max_tokens=140, seed=5, logprobs=2, ignore_eos=True, temperature=0.4)
    plain = LLM(toy, backend="cpu")
    expected = bits(plain.generate([[7] * 200], params, n=4))
    assert len({tuple(tokens) for tokens, _, _ in expected}) == 4
    with foresight([[7] * 200], [expected[0][0]], wrong):
        llm = LLM(toy, backend="cpu", speculate=5)
        assert bits(llm.generate([[7] * 200], params, n=4)) == expected
    stats = llm.engine.stats()
    assert stats.guessed_tokens > 0
    assert (stats.accepted_tokens < 10) == (wrong == 1), "another choice may draw the very token by chance"


def test_a_stop_string_within_a_group_of_tokens_ends_the_answer_there(toy: Path) -> None:
    free = SamplingParams(max_tokens=60, temperature=0.0, logprobs=1, ignore_eos=True)
    plain, prompt = LLM(toy, backend="cpu"), [[10, 20, 30]]
    answer = plain.generate(prompt, free)[0].choices[0]
    for at in range(3, 40, 4):
        stop = answer.text[at : at + 2]
        for params in (msgspec.structs.replace(free, stop=(stop,)), msgspec.structs.replace(free, stop_token_ids=(answer.tokens[at],))):
            expected = plain.generate(prompt, params)[0].choices[0]
            with foresight(prompt, [answer.tokens], wrong=1000):
                choice = LLM(toy, backend="cpu", speculate=7).generate(prompt, params)[0].choices[0]
            assert choice == expected
            assert choice.finish_reason == "stop"


@pytest.mark.parametrize("wrong", [4, 1000])
def test_answers_of_a_given_form_are_guessed_too(toy: Path, wrong: int) -> None:
    """One that is complete within a group of tokens ends there, and nothing is sampled after it."""
    forms = (guide.regex("[a-f]{25}"), guide.regex("([a-c]{3}-){20}"), guide.choice(["yes, of course", "no, never at all"]))
    prompts = [[30 + i] * (5 + i) for i in range(6)]
    params = [SamplingParams(max_tokens=60, temperature=i % 2, seed=i, logprobs=2, grammar=forms[i % 3]) for i in range(6)]
    plain = LLM(toy, backend="cpu").generate(prompts, params)
    assert {output.finish_reason for output in plain} == {"stop", "length"}
    with foresight(prompts, [[*output.tokens, 7, 7, 7] for output in plain], wrong):
        llm = LLM(toy, backend="cpu", speculate=4)
        found = llm.generate(prompts, params)
    assert [output.choices for output in found] == [output.choices for output in plain]
    assert llm.engine.stats().accepted_tokens > 50


def test_recorded_steps_with_guesses_are_the_eager_ones(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, params = prompts_and_params()
    expected = bits(LLM(toy, backend="cpu").generate(prompts, params))
    monkeypatch.setattr(DecodeGraphs, "usable", lambda device: False)
    with foresight(prompts, answers(expected)):
        assert bits(LLM(toy, backend="cpu", speculate=5).generate(prompts, params)) == expected


FAULTS = ("accepts what was guessed", "samples after the wrong tokens", "keeps stale rows", "mixes up recorded steps")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(toy: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    prompts, params = prompts_and_params(3, length=60)
    expected = bits(LLM(toy, backend="cpu").generate(prompts, params))
    if fault == FAULTS[0]:
        accept = Runner._accept
        wrong = lambda self, span, rows: Sampled(span.guess[:1]) if span.guess else accept(self, span, rows)  # noqa: E731
        monkeypatch.setattr(Runner, "_accept", wrong)
    elif fault == FAULTS[1]:
        sample = sampler.sample
        shortest = {}

        def forgetful(logits, params, known, *rest):
            """With what was known before the step."""
            return sample(logits, params, known[: shortest.setdefault(id(known), len(known))], *rest)

        monkeypatch.setattr(sampler, "sample", forgetful)
        launch = Runner.launch
        monkeypatch.setattr(Runner, "launch", lambda self, plan, before=None: (shortest.clear(), launch(self, plan, before))[1])
    elif fault == FAULTS[2]:
        never_overwritten(monkeypatch)
        monkeypatch.setattr(DecodeGraphs, "usable", lambda device: False)
        assert bits(LLM(toy, backend="cpu").generate(prompts, params)) == expected, "without guesses nothing is written twice"
    else:
        step = DecodeGraphs.step
        monkeypatch.setattr(DecodeGraphs, "step", lambda self, spans, runs: step(self, 0, runs))
    with pytest.raises((AssertionError, ValueError, RuntimeError)):  # rows that were never written may hold NaN, which a recording refuses
        compare(toy, prompts, params, expected)


def compare(toy: Path, prompts: list, params: list, expected: list) -> None:
    """One stream of six rows a step, then three streams of two."""
    with foresight(prompts, answers(expected)):
        llm = LLM(toy, backend="cpu", speculate=5)
        assert bits(llm.generate(prompts[:1], params[:1])) == expected[:1]
        llm.engine.scheduler.speculation.most = 1
        assert bits(llm.generate(prompts, params)) == expected


def test_without_a_planted_fault_that_comparison_passes(toy: Path) -> None:
    prompts, params = prompts_and_params(3, length=60)
    compare(toy, prompts, params, bits(LLM(toy, backend="cpu").generate(prompts, params)))


def never_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of a tail is written once, so that a wrong guess stays in it."""
    append, written = view.attention.append, set()

    def once(k, v, tails, items):
        for row, count, start, tail, _, _ in items.tolist():
            for r in range(count):
                if (place := (tails.data_ptr(), tail, start + r)) not in written:
                    written.add(place)
                    append(k, v, tails, items.new_tensor([[row + r, 1, start + r, tail, -1, 0]]))

    monkeypatch.setattr(view.attention, "append", once)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_default_model_quotes_faster_and_says_the_same(model_path: Path) -> None:
    plain = LLM(model_path, backend="cpu")
    code = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return width * height * depth\n"
    chats = (f"Repeat this code, and nothing else:\n\n```python\n{code}```", "Tell me a story of a dog.", "List the months of the year.")
    prompts = [plain.template.render([{"role": "user", "content": content}]) for content in chats]
    params = [SamplingParams(max_tokens=90, temperature=temperature, seed=1, logprobs=2) for temperature in (0.0, 0.8, 0.0)]
    expected = bits(plain.generate(prompts, params))
    with computed():
        llm = LLM(model_path, backend="cpu", speculate=8)
        assert bits(llm.generate(prompts, params)) == expected
        assert_some_came(llm)
        assert bits(LLM(model_path, backend="cpu", speculate=8, max_running=1).generate(prompts, params)) == expected


def test_a_server_that_guesses_answers_as_one_that_does_not(toy: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=100, logprobs=1)
    expected = LLM(toy).generate([[65, 66, 67] * 9], params)[0]
    with model_server(toy, "--speculate", "4") as server:
        answer = server.complete([65, 66, 67] * 9, max_tokens=100, logprobs=1).json()
        choice = answer["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (expected.text, expected.finish_reason)
        assert answer["usage"]["completion_tokens"] == len(expected.tokens)
        shown = len(expected.tokens) - (expected.finish_reason == "stop")
        assert choice["logprobs"]["token_logprobs"] == [score.logprob for score in expected.choices[0].logprobs[:shown]]
        assert server.metric("pitstop_generated_tokens_total") == len(expected.tokens)
        assert 0 <= server.metric("pitstop_accepted_tokens_total") <= server.metric("pitstop_guessed_tokens_total")
        assert any("Guessing ahead: up to 4 tokens" in line for line in server.printed)
