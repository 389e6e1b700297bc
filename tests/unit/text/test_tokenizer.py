"""The tokenizer against llama.cpp's ids on the real vocabulary, and its rules on a small one."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import TOY_CONTROL, byte_tokens, toy_vocabulary

from pitstop.errors import InvalidRequest, Unsupported
from pitstop.text.tokenizer import Tokenizer
from pitstop.text.vocabulary import Vocabulary

TORTURE = json.loads((Path(__file__).parents[2] / "data" / "tokenizer_torture.json").read_text())["cases"]
TOY = Tokenizer(toy_vocabulary())

unicode_text = st.text(st.characters(exclude_categories=["Cs"]))
nasty_text = st.lists(
    st.sampled_from([*TOY_CONTROL, "<|im_", "end|>", "<", "|>", "hello", " world", "\n\n", "7", "世", "<think>"]) | unicode_text
)


@pytest.mark.model
def test_equals_llama_cpp(default_tokenizer: Tokenizer) -> None:
    assert len(TORTURE) > 300
    for case in TORTURE:
        assert default_tokenizer.encode(case["text"]) == case["plain"], case["text"]
        assert default_tokenizer.encode(case["text"], control=True) == case["control"], case["text"]


@pytest.mark.model
def test_default_vocabulary(default_tokenizer: Tokenizer, default_vocabulary: Vocabulary) -> None:
    assert (default_tokenizer.vocab_size, default_tokenizer.bos, default_tokenizer.eos) == (49152, 1, 2)
    assert default_tokenizer.end_tokens == {0, 2}  # <|endoftext|> and <|im_end|>
    assert [i for i in range(49152) if default_tokenizer.is_control(i)] == list(range(17))
    assert default_vocabulary.add_bos is False


@pytest.mark.model
@pytest.mark.parametrize("text", ["\u0301" * 10_000, "\ufeffx", "a\x00b", "👩‍👩‍👧‍👦", "中文，标点。", " " * 5000, "7" * 5000])
def test_default_model_gives_the_text_back(default_tokenizer: Tokenizer, text: str) -> None:
    assert default_tokenizer.decode(default_tokenizer.encode(text)) == text


@pytest.mark.model
def test_character_without_tokens_is_left_out(default_tokenizer: Tokenizer) -> None:
    assert default_tokenizer.decode(default_tokenizer.encode("a\x04b")) == "ab"


def test_merges_and_digits() -> None:
    assert TOY.encode("hello world") == [264, 269]
    assert TOY.encode("12") == byte_tokens(b"12")
    assert TOY.decode(TOY.encode("12")) == "12"


@given(nasty_text.map("".join))
def test_plain_text_never_gives_a_control_token_and_comes_back(text: str) -> None:
    ids = TOY.encode(text)
    assert not any(map(TOY.is_control, ids))
    assert TOY.decode(ids) == text


@given(nasty_text.map("".join))
def test_control_spellings_are_recognised_when_asked(text: str) -> None:
    ids = TOY.encode(text, control=True)
    assert TOY.decode(ids) == text
    assert sum(map(TOY.is_control, ids)) == sum(text.count(spelling) for spelling in TOY_CONTROL)


def test_longest_control_spelling_wins() -> None:
    vocabulary = toy_vocabulary()
    tokens, types = [*vocabulary.tokens, "<|im_end|>!"], [*vocabulary.types, 3]
    tokenizer = Tokenizer(replace(vocabulary, tokens=tokens, types=types))
    assert tokenizer.encode("<|im_end|>!<|im_end|>", control=True) == [len(tokens) - 1, 2]


def test_a_merge_cannot_make_a_control_token() -> None:
    vocabulary = toy_vocabulary()
    merges = [*vocabulary.merges, "< |", "<| >"]
    tokens, types = [*vocabulary.tokens, "<|", "<|>"], [*vocabulary.types, 1, 3]
    tokenizer = Tokenizer(replace(vocabulary, tokens=tokens, types=types, merges=merges))
    ids = tokenizer.encode("<|>")
    assert not any(map(tokenizer.is_control, ids))
    assert tokenizer.decode(ids) == "<|>"


def test_user_defined_words_are_whole_in_every_text() -> None:
    assert TOY.encode("a<think>b") == [*byte_tokens(b"a"), 4, *byte_tokens(b"b")]
    assert not TOY.is_control(4)


def test_end_tokens_are_those_of_the_vocabulary() -> None:
    assert TOY.end_tokens == {0, 2}
    vocabulary = toy_vocabulary()
    types = [1 if token == "<|endoftext|>" else kind for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)]
    assert Tokenizer(replace(vocabulary, types=types)).end_tokens == {2}  # an ordinary word of that spelling ends nothing


def test_bos_only_where_the_model_wants_it() -> None:
    assert TOY.encode_prompt("hello") == [264]
    assert Tokenizer(toy_vocabulary(add_bos=True)).encode_prompt("hello") == [1, 264]
    assert Tokenizer(toy_vocabulary(add_bos=True)).encode("hello") == [264]


@pytest.mark.parametrize("control", [False, True])
def test_lone_surrogate_is_refused_with_its_place(control: bool) -> None:
    with pytest.raises(InvalidRequest, match=r"lone surrogate \(U\+D83D\) at character 2"):
        TOY.encode("ab\ud83d", control=control)


@pytest.mark.parametrize("token", [-1, 10**9])
def test_decode_refuses_ids_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(InvalidRequest, match=f"token id {token} is outside the vocabulary of {TOY.vocab_size}"):
        TOY.decode([token])


def test_token_bytes_are_exact() -> None:
    assert [TOY.token_bytes(i) for i in byte_tokens(bytes(range(256)))] == [bytes([byte]) for byte in range(256)]
    assert TOY.token_bytes(2) == b"<|im_end|>"
    assert TOY.token_bytes(264) == b"hello"
    assert TOY.token_bytes(269) == b" world"


def test_byte_tokens_and_raw_spellings() -> None:
    vocabulary = toy_vocabulary()
    tokenizer = Tokenizer(replace(vocabulary, tokens=[*vocabulary.tokens, "<0xE4>", "世Ġ"], types=[*vocabulary.types, 6, 1]))
    assert tokenizer.token_bytes(tokenizer.vocab_size - 2) == b"\xe4"
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == "世 ".encode()


@pytest.mark.parametrize(
    ("change", "named"),
    [({"model": "bert"}, "'bert'"), ({"pre": "falcon"}, "'falcon'"), ({"merges": ["no where"]}, "merges do not fit")],
)
def test_unknown_kinds_are_refused_by_name(change: dict, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        Tokenizer(replace(toy_vocabulary(), **change))


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("smollm", ["a", "1", "2", "3", "4", " b", "'ll", " ", " x"]),
        ("gpt-2", ["a", "1234", " b", "'ll", " ", " x"]),
        ("llama-bpe", ["a", "123", "4", " b", "'ll", " ", " x"]),
        ("qwen2", ["a", "1", "2", "3", "4", " b", "'ll", " ", " x"]),
    ],
)
def test_pre_tokenizers_cut_words(pre: str, words: list[str]) -> None:
    from pitstop.text.tokenizer import _pre_tokenizer

    cut = _pre_tokenizer(pre).pre_tokenize_str("a1234 b'll  x")
    assert [word.replace("Ġ", " ") for word, _ in cut] == words


def test_llama3_takes_whole_words() -> None:
    vocabulary = toy_vocabulary(pre="llama-bpe")
    tokens, types = [*vocabulary.tokens, "zebra"], [*vocabulary.types, 1]  # no merges lead to it
    assert Tokenizer(replace(vocabulary, tokens=tokens, types=types)).encode("zebra") == [len(tokens) - 1]
    assert Tokenizer(replace(vocabulary, pre="smollm", tokens=tokens, types=types)).encode("zebra") == byte_tokens(b"zebra")


def test_encoding_lets_other_threads_run() -> None:
    """While a long text is encoded, a thread that needs the interpreter lock never waits for most of the time it takes."""
    text = "hello world, " * 80_000
    started, done = threading.Event(), threading.Event()

    def encode() -> None:
        started.set()
        TOY.encode(text)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    started.wait()
    begin = last = time.perf_counter()
    longest = 0.0
    while not done.is_set():
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
    thread.join()
    assert max(longest, time.perf_counter() - last) < (time.perf_counter() - begin) / 2
