"""Padded batches through the model (MISSION R7, CASES 24): padding never changes an answer, and never crashes."""

from __future__ import annotations

import itertools

import pytest
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams
from pitstop.errors import InvalidRequest

PARAMS = SamplingParams(max_tokens=3, temperature=0.0, logprobs=3, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf"))


def bits(outputs: list) -> list:
    return [(output.tokens, output.choices[0].logprobs) for output in outputs]


def padded(rows: list[list[int]], width: int, lefts: list[int], pad: int = 0) -> dict[str, list[list[int]]]:
    """Rows of different lengths in a rectangle, row i with lefts[i] pads in front."""
    ids = [[pad] * left + row + [pad] * (width - left - len(row)) for row, left in zip(rows, lefts, strict=True)]
    mask = [[0] * left + [1] * len(row) + [0] * (width - left - len(row)) for row, left in zip(rows, lefts, strict=True)]
    return {"input_ids": ids, "attention_mask": mask}


def test_every_padding_pattern_of_a_small_batch(llm: LLM) -> None:
    """Two rows in a rectangle of width 5: all pairs of (left, length), against each row alone."""
    spans = [(left, length) for left in range(5) for length in range(1, 6 - left)]
    alone = {length: bits(llm.generate([list(range(10, 10 + length))], PARAMS))[0] for length in range(1, 6)}
    for first, second in itertools.product(spans, spans):
        rows = [list(range(10, 10 + length)) for _, length in (first, second)]
        batch = padded(rows, 5, [first[0], second[0]])
        assert bits(llm.generate(params=PARAMS, **batch)) == [alone[first[1]], alone[second[1]]]


def test_very_uneven_lengths(llm: LLM) -> None:
    rows = [[11], [12, 13], [n % 250 + 3 for n in range(511)], [14]]
    alone = [bits(llm.generate([row], PARAMS))[0] for row in rows]
    for lefts in ([510, 509, 0, 510], [0, 0, 0, 0], [255, 100, 0, 1]):
        assert bits(llm.generate(params=PARAMS, **padded(rows, 511, lefts))) == alone


def test_five_pads_in_a_row_a_thousand_times(llm: LLM) -> None:
    row = [20, 21, 22]
    alone = bits(llm.generate([row], PARAMS))[0]
    batch = padded([row] * 10, 13, [5, 0, 10, 5, 5, 1, 2, 3, 4, 5])
    for _ in range(100):
        assert bits(llm.generate(params=PARAMS, **batch)) == [alone] * 10
    llm.engine.check()


@pytest.mark.parametrize(
    ("mask", "message"), [([[1, 0, 1]], "hole"), ([[0, 0, 0]], "all padding"), ([[1, 1]], "shape"), ([[1, 2, 1]], "only 0 and 1")]
)
def test_bad_masks_are_refused_and_nothing_is_left(llm: LLM, mask: list, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate(input_ids=[[5, 6, 7]], attention_mask=mask)
    assert not llm.engine.busy


def test_a_bad_prompt_in_a_batch_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(InvalidRequest):
        llm.generate([[5, 6], [10**6]], PARAMS)
    assert not llm.engine.busy
    assert len(llm.generate([[5, 6]], PARAMS)[0].tokens) == 3
