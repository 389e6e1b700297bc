"""Incremental text: whole characters only, stop strings that never leak, and no dependence on how tokens are grouped."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import byte_tokens, toy_vocabulary

from pitstop.text.stream import Delta, TextStream
from pitstop.text.tokenizer import Tokenizer

TOY = Tokenizer(toy_vocabulary())


def fold(tokens: list[int], stop: tuple[str, ...] = (), min_tokens: int = 0, group: int = 1) -> tuple[str, int, bool]:
    """(the whole text, tokens used, stopped) of an answer that comes in groups."""
    stream = TextStream(TOY, stop, min_tokens)
    deltas = [stream.push(tokens[i : i + group]) for i in range(0, len(tokens), group)] + [stream.finish()]
    return "".join(delta.text for delta in deltas), sum(delta.tokens for delta in deltas), deltas[-1].stopped


def expected(tokens: list[int], stop: tuple[str, ...], min_tokens: int) -> tuple[str, int, bool]:
    """The same by the definition: look at the whole text anew after every token."""
    before = 0
    for count in range(1, len(tokens) + 1):
        text = whole_characters(tokens[:count])
        for end in range(before + 1, len(text) + 1):
            lengths = [len(s) for s in stop if text[:end].endswith(s)]
            if lengths and count >= min_tokens:
                return text[: end - max(lengths)], count, True
        before = len(text)
    return whole_characters(tokens), len(tokens), False


def whole_characters(tokens: list[int]) -> str:
    data = b"".join(TOY.token_bytes(token) for token in tokens if not TOY.is_control(token))
    for size in range(4):  # an unfinished character is up to 3 bytes at the end
        tail = data[len(data) - size :]
        if size == 0 or (len(tail) == size and is_unfinished(tail)):
            best = size
    return data[: len(data) - best].decode("utf-8", "replace")


def is_unfinished(tail: bytes) -> bool:
    """Whether the bytes begin one character of UTF-8 without ending it."""
    for more in (b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\xbf", b"\xbf\xbf", b"\xbf\xbf\xbf", b"\x90\x80\x80", b"\x90\x80"):
        try:
            if len((tail + more).decode("utf-8", "surrogatepass")) == 1:  # the codec waits for all of a surrogate
                return True
        except UnicodeDecodeError:
            continue
    return False


characters = st.sampled_from("abABé世👍\n")
answers = st.lists(
    st.one_of(
        characters.map(lambda c: byte_tokens(c.encode())),
        st.sampled_from([[0], [2], [4], [264], [269], [271]]),  # control tokens, a word, merges, one that is half a character
        st.binary(min_size=1, max_size=3).map(byte_tokens),
    ),
    max_size=25,
).map(lambda parts: [token for part in parts for token in part])
stops = st.lists(st.text(characters, min_size=1, max_size=5), max_size=4).map(tuple)


@given(answers, stops, st.integers(0, 8), st.integers(1, 30))
def test_equals_the_definition_however_grouped(tokens: list[int], stop: tuple[str, ...], min_tokens: int, group: int) -> None:
    assert fold(tokens, stop, min_tokens, group) == expected(tokens, stop, min_tokens)


@given(answers, stops)
def test_holds_back_only_what_could_become_a_stop_string(tokens: list[int], stop: tuple[str, ...]) -> None:
    stream = TextStream(TOY, stop)
    sent = ""
    for count, token in enumerate(tokens, 1):
        delta = stream.push([token])
        sent += delta.text
        if delta.stopped:
            break
        text = whole_characters(tokens[:count])
        held = max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
        assert sent == text[: len(text) - held]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_in_single_bytes_comes_whole(text: str) -> None:
    stream = TextStream(TOY)
    deltas = [stream.push([token]).text for token in byte_tokens(text.encode())]
    assert "".join(deltas) == text
    assert [delta for delta in deltas if delta] == list(text)


@pytest.mark.parametrize("group", [1, 2, 3, 100])
def test_stop_string_does_not_leak(group: int) -> None:
    assert fold(byte_tokens(b"ABCDEFGHIJKLM"), ("DEFGHIJ",), group=group) == ("ABC", 10, True)


def test_a_false_start_is_given_back() -> None:
    stream = TextStream(TOY, ("DEFGHIJ",))
    assert stream.push(byte_tokens(b"ABCDEF")) == Delta("ABC", 6, False)
    assert stream.push(byte_tokens(b"DE")) == Delta("DEF", 2, False)
    assert stream.push(byte_tokens(b"X")) == Delta("DEX", 1, False)
    assert stream.push(byte_tokens(b"DEF")) == Delta("", 3, False)
    assert stream.finish() == Delta("DEF", 0, False)


def test_the_first_completed_stop_string_counts_and_the_longest_of_those() -> None:
    assert fold(byte_tokens(b"abcd"), ("abcd", "bc")) == ("a", 3, True)
    assert fold(byte_tokens(b"abcd"), ("cd", "bcd")) == ("a", 4, True)
    assert fold(byte_tokens(b"aab"), ("ab",)) == ("a", 3, True)


def test_stop_string_inside_a_longer_token_cuts_it() -> None:
    assert fold([264], ("l",)) == ("he", 1, True)  # "hello"


def test_nothing_follows_a_stop() -> None:
    stream = TextStream(TOY, ("b",))
    assert stream.push(byte_tokens(b"abcd")) == Delta("a", 2, True)
    assert stream.push(byte_tokens(b"b")) == Delta("", 0, True)
    assert stream.finish() == Delta("", 0, True)


def test_min_tokens_puts_off_the_search() -> None:
    assert fold(byte_tokens(b"a.b.c"), (".",), min_tokens=3) == ("a.b", 4, True)
    assert fold(byte_tokens(b"a.b.c"), (".",), min_tokens=2) == ("a", 2, True)
    assert fold(byte_tokens(b"ab"), ("ab",), min_tokens=2) == ("", 2, True)  # begun before, completed in time
    assert fold(byte_tokens(b"aab"), ("a", "ab"), min_tokens=3) == ("a", 3, True)


def test_a_stop_string_that_came_too_early_is_not_held_back() -> None:
    assert TextStream(TOY, ("ab", "bc"), min_tokens=9).push(byte_tokens(b"xab")) == Delta("xa", 3, False)
    assert TextStream(TOY, ("ab",), min_tokens=9).push(byte_tokens(b"xab")) == Delta("xab", 3, False)


def test_control_tokens_have_no_text_but_count() -> None:
    assert fold([*byte_tokens(b"a"), 2, *byte_tokens(b"b")], ("b",)) == ("a", 3, True)
    assert fold([1, 0, 2]) == ("", 3, False)


def test_bytes_that_are_no_text_are_replaced_and_an_unfinished_end_is_dropped() -> None:
    assert fold(byte_tokens(b"a\xffb")) == ("a\ufffdb", 3, False)
    assert fold(byte_tokens(b"\xf0\x9fa")) == ("\ufffda", 3, False)
    assert fold(byte_tokens("a👍".encode()[:-1])) == ("a", 4, False)


def test_no_part_of_a_character_is_ever_sent() -> None:
    stream = TextStream(TOY)
    texts = [stream.push([token]).text for token in byte_tokens("世👍".encode())]
    assert texts == ["", "", "世", "", "", "", "👍"]


def test_cost_does_not_grow_with_the_answer() -> None:
    """16 stop strings of 1,024 characters against an answer that nearly completes them all the time; linear, so quick."""
    stop = tuple("a" * (1023 - i) + "b" * (i + 1) for i in range(16))
    stream = TextStream(TOY, stop)
    tokens = byte_tokens(b"a" * 2000)

    def seconds() -> float:
        begin = time.thread_time()
        for token in tokens:
            stream.push([token])
        return time.thread_time() - begin

    first = min(seconds() for _ in range(2))
    for _ in range(8):
        seconds()
    last = min(seconds() for _ in range(2))
    assert last < 3 * first
    assert last / len(tokens) < 100e-6
