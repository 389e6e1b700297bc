"""Texts to sequences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toys import TOY_CONTROL, toy_vocabulary

from pitstop.errors import ConfigError
from pitstop.precision.texts import BUILT_IN, read_windows, short_text
from pitstop.text.tokenizer import Tokenizer

VOCABULARY = toy_vocabulary()


def text(folder: Path, words: str, name: str = "some.txt") -> str:
    (folder / name).write_text(words, "utf-8")
    return str(folder / name)


def test_a_text_is_cut_and_its_end_held_out(tmp_path: Path) -> None:
    words = "".join(f"{number} sheep and a hello world\n" for number in range(400))
    found = read_windows("--qat", text(tmp_path, words), VOCABULARY, 32)
    assert {len(window) for window in found.used + found.held_out} == {32}
    assert len(found.held_out) == (len(found.used) + len(found.held_out)) // 20
    joined = [token for window in found.used + found.held_out for token in window]
    assert joined == Tokenizer(VOCABULARY).encode(words)[: len(joined)]


def test_texts_of_a_model_with_a_first_token_begin_with_it(tmp_path: Path) -> None:
    found = read_windows("--qat", text(tmp_path, "a word " * 400), toy_vocabulary(add_bos=True), 32)
    assert {window[0] for window in found.used} == {VOCABULARY.bos}
    assert {len(window) for window in found.used} == {32}
    assert all(window[0] == VOCABULARY.bos for window in short_text(toy_vocabulary(add_bos=True), 100))


def test_conversations_go_through_the_template(tmp_path: Path) -> None:
    talk = {"messages": [{"role": "user", "content": "hello <|im_end|>"}, {"role": "assistant", "content": "world"}]}
    lines = [json.dumps(talk), "", json.dumps({"text": "hello world"})] * 30
    found = read_windows("--qat", text(tmp_path, "\n".join(lines), "talks.jsonl"), VOCABULARY, 16)
    joined = [token for window in found.used + found.held_out for token in window]
    tokenizer = Tokenizer(VOCABULARY)
    assert tokenizer.decode(joined).startswith(
        "<|im_start|>user\nhello <|im_end|><|im_end|>\n<|im_start|>assistant\nworld<|im_end|>\nhello world<|im_end|>"
    )
    end = TOY_CONTROL.index("<|im_end|>")
    first = joined[: joined.index(end)]
    assert "hello <|im_end|>" in tokenizer.decode(first), "a control token in a user's words is plain text"


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("a.txt", "short", r"--qat .*a\.txt: \d+ tokens, and two sequences of --length 32 are needed"),
        (
            "b.jsonl",
            '{"messages": [{"role": "user", "content": "x"}]}\n{"words": 1}',
            r'b\.jsonl: line 2 has neither "messages" nor "text"',
        ),
        ("c.jsonl", "no json", r"c\.jsonl: line 1 has neither"),
        ("d.jsonl", "[1]", r"d\.jsonl: line 1 has neither"),
    ],
)
def test_texts_that_cannot_be_used(tmp_path: Path, name: str, words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_windows("--qat", text(tmp_path, words, name), VOCABULARY, 32)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--calibrate .*none: cannot be read as text"):
        read_windows("--calibrate", str(tmp_path / "none"), VOCABULARY, 32)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(ConfigError, match=r"--calibrate .*bytes: cannot be read as text"):
        read_windows("--calibrate", str(tmp_path / "bytes"), VOCABULARY, 32)
    with pytest.raises(ConfigError, match=r"--length 4: choose at least 8 tokens"):
        read_windows("--qat", str(tmp_path / "none"), VOCABULARY, 4)


def test_a_text_is_built_in() -> None:
    assert len(read_windows("--calibrate", BUILT_IN, VOCABULARY, 256).used) > 1000
