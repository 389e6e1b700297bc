"""Prompts: real text, of the length asked for by whatever counts, and no two that begin alike."""

from __future__ import annotations

import re

import pytest

from pitstop.errors import ConfigError
from pitstop.verify.load.texts import BEGINNING, Prompts, read_source

COUNTERS = {
    "bytes": lambda text: len(text.encode()),
    "words and signs": lambda text: len(re.findall(r"\w+|[^\w\s]|\s{2,}", text)) + 1,
    "nearly four letters": lambda text: sum(-(-len(word) // 4) for word in re.split(r"(?=\s)", text)),
}


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("tokens", [32, 128, 512, 2000])
def test_lengths_by_any_count(counter: str, tokens: int) -> None:
    count = COUNTERS[counter]
    prompts = Prompts(read_source(), 0, count, 2.5)
    for _ in range(20):
        assert tokens - max(1, tokens // 100) <= count(prompts.take(tokens)) <= tokens


def test_prompts_are_pieces_of_the_text_and_begin_differently() -> None:
    source = read_source()
    prompts = Prompts(source, 0, None, 4.0)
    taken = [prompts.take(20) for _ in range(5000)]
    assert all(text in source for text in taken[:200])
    assert len({text[:BEGINNING] for text in taken}) == len(taken)


def test_the_seed_decides() -> None:
    first, again, other = ([Prompts(read_source(), seed, None, 4.0).take(20)] for seed in (1, 1, 2))
    assert first == again != other


def test_a_text_is_used_up() -> None:
    prompts = Prompts("One two three four five six seven eight nine ten eleven twelve thirteen.", 0, None, 1.0)
    with pytest.raises(ConfigError, match="--text"):
        [prompts.take(20) for _ in range(100)]


def test_a_prompt_too_short_to_differ() -> None:
    with pytest.raises(ConfigError, match="longer"):
        Prompts(read_source(), 0, len, 1.0).take(8)


def test_a_file_that_is_no_text(tmp_path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="x"):
        read_source(tmp_path / "x")
