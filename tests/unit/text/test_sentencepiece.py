"""Encoding by scores against the algorithm itself: merge the neighbours whose union scores best, the leftmost first, until none is left."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.errors import Unsupported
from pitstop.text.tokenizer import Tokenizer
from pitstop.text.vocabulary import TokenType, Vocabulary

CONTROL, WORDS = ("<unk>", "<bos>", "<end_of_turn>"), ("\n\n",)
PIECES = ("▁", "a", "b", "c", "\n", "你", "ab", "bc", "▁a", "abc", "▁ab", "aa", "aaa", "▁▁", "▁b", "cab", "▁abc", "b▁")
SCORES = [-3.0, -1.0, -2.0, -2.5, -9.0, -9.0, -4.0, -3.5, -5.0, -6.0, -4.5, -2.0, -7.0, -1.5, -8.0, -0.5, -5.5, -2.2]


def vocabulary(add_space: bool) -> Vocabulary:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, TokenType.USER_DEFINED]
    kinds += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(PIECES)
    return Vocabulary(
        model="llama",
        pre="default",
        tokens=[*CONTROL, *WORDS, *bytes_, *PIECES],
        types=[int(kind) for kind in kinds],
        merges=[],
        bos=1,
        eos=2,
        add_bos=True,
        scores=[0.0] * (4 + 256) + SCORES,
        add_space=add_space,
    )


def by_the_book(text: str) -> list[str]:
    score = dict(zip(PIECES, SCORES, strict=True))
    pieces = list(text)
    while True:
        unions = [(score[left + right], -i) for i, (left, right) in enumerate(pairwise(pieces)) if left + right in score]
        if not unions:
            return [part for piece in pieces for part in ([piece] if piece in score else [f"<0x{byte:02X}>" for byte in piece.encode()])]
        i = -max(unions)[1]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@given(st.text("aaabbc 你é", max_size=30), st.booleans())
def test_ids_are_the_algorithms(text: str, add_space: bool) -> None:
    stated = vocabulary(add_space)
    ids = Tokenizer(stated).encode(text)
    expected = by_the_book(("▁" if add_space and text else "") + text.replace(" ", "▁"))
    assert [stated.tokens[id] for id in ids] == expected


def test_bytes_words_and_control_tokens() -> None:
    tokenizer = Tokenizer(vocabulary(False))
    assert tokenizer.decode(tokenizer.encode("a 你é🏁\n\nb")) == "a 你é🏁\n\nb"
    assert tokenizer.encode("a\n\nb").count(3) == 1
    assert tokenizer.encode("<end_of_turn>", control=True) == [2]
    assert 2 not in tokenizer.encode("<end_of_turn>")
    assert tokenizer.encode_prompt("")[:1] == [1]


def test_what_is_missing_is_named() -> None:
    stated = vocabulary(False)
    with pytest.raises(Unsupported, match="0 scores for 278 tokens"):
        Tokenizer(replace(stated, scores=[]))
    with pytest.raises(Unsupported, match="no token <0x0A>"):
        Tokenizer(replace(stated, tokens=["<0x0B>" if token == "<0x0A>" else token for token in stated.tokens]))
