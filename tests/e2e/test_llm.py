"""LLM as a library: calls within calls."""

from __future__ import annotations

import pytest
from tiny_models import write_tiny_model

from pitstop import LLM, SamplingParams
from pitstop.errors import InvalidRequest, PitstopError
from pitstop.models.embedding import Embedding

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder, "qwen3")
    return LLM(folder, context=256, memory=16 << 20, threads=1)


@pytest.mark.timeout(60)  # it waited for ever
@pytest.mark.parametrize("length", [4, 40])
def test_a_call_between_two_pieces_takes_nothing_of_the_stream(llm: LLM, length: int) -> None:
    params, other = (SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (24, length))
    alone, inner = "".join(llm.stream_chat(MESSAGES, params)), llm.generate("other", other)[0].tokens
    vector = llm.embed("other", Embedding("mean"))
    pieces, found = [], []
    for piece in llm.stream_chat(MESSAGES, params):
        pieces.append(piece)
        if len(pieces) == 2:
            found = [llm.generate("other", other)[0].tokens, (llm.embed("other", Embedding("mean")) == vector).all()]
    assert ("".join(pieces), found) == (alone, [inner, True])
    llm.engine.check()


@pytest.mark.timeout(60)
def test_two_streams_by_turns_and_one_that_is_left(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    alone = "".join(llm.stream_chat(MESSAGES, params))
    first, second, left = (llm.stream_chat(MESSAGES, params) for _ in range(3))
    next(left)
    text = [next(first), next(second)]
    left.close()
    text[0] += "".join(first)
    text[1] += "".join(second)
    assert text == [alone, alone]
    assert not llm.engine.busy
    llm.engine.check()


def failing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step, scheduler = llm.engine.step, llm.engine.scheduler
    monkeypatch.setattr(llm.engine, "step", lambda: scheduler.fail_all("the numbers are no numbers") or step())


def test_why_an_answer_failed_is_told(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = llm.generate("a", SamplingParams(max_tokens=4, ignore_eos=True))
    assert (whole.finish_reason, whole.choices[0].message) == ("length", "")
    failing(llm, monkeypatch)
    (failed,) = llm.generate("a")
    assert (failed.finish_reason, failed.choices[0].message) == ("error", "the numbers are no numbers")


def test_a_text_that_cannot_be_embedded_is_an_error(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="no text"):
        llm.embed([], Embedding("mean"))
    failing(llm, monkeypatch)
    with pytest.raises(PitstopError, match="no numbers"):
        llm.embed("a", Embedding("mean"))
