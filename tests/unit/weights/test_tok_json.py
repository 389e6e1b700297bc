"""Grok-2's tokenizer.tok.json: the tokens are those of the format's own rule."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from pitstop.errors import WeightsError
from pitstop.models.weights.files import TOK_JSON
from pitstop.models.weights.tok_json import _SPLITS, read_tok_json
from pitstop.models.weights.tokenizer_json import read_vocabulary
from pitstop.text.template import ChatTemplate
from pitstop.text.tokenizer import Tokenizer, end_tokens

SPECIAL = {"<|pad|>": 0, "<|separator|>": 1, "<|eos|>": 2}
PARTS = ["he", "ll", "hell", "hello", " w", "or", " wor", "ld", " world", "  ", "'s", "é", "人", "工智", "人工智能", "xyz", "\n\n", "12"]
RANKS = {bytes([byte]): 3 + byte for byte in range(256)}
RANKS |= {token.encode(): 300 + i for i, token in enumerate(PARTS)}
SIZE = 400


def content(**changes: object) -> dict:
    regular = [{"bytes": list(token), "token": rank} for token, rank in RANKS.items()]
    special = [{"bytes": list(token.encode()), "token": id} for token, id in SPECIAL.items()]
    return {"regular_tokens": regular, "special_tokens": special, "word_split": "V1", "vocab_size": SIZE} | changes


def write(folder: Path, **changes: object) -> Path:
    (folder / TOK_JSON).write_text(json.dumps(content(**changes)))
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(read_vocabulary(write(tmp_path_factory.mktemp("grok2")), {}, SIZE))


@lru_cache
def merged(word: bytes) -> list[int]:
    """A word that is a token, else its bytes, of which the neighbours with the lowest rank merge as long as there are such."""
    if word in RANKS:
        return [RANKS[word]]
    parts = [bytes([byte]) for byte in word]
    while pairs := [(RANKS[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in RANKS]:
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [RANKS[part] for part in parts]


def test_a_token_that_merging_cannot_make_is_taken_as_a_word(tokenizer: Tokenizer):
    assert tokenizer.encode("xyz") == [RANKS[b"xyz"]]
    assert tokenizer.encode("xyza") == [RANKS[bytes([byte])] for byte in b"xyza"]
    assert tokenizer.encode("人工智能") == [RANKS["人工智能".encode()]]


@given(st.text(st.sampled_from("helo wrd's人工智能é\n 12xyz"), max_size=40) | st.text(max_size=20))
def test_tokens_are_those_of_the_formats_rule(tokenizer: Tokenizer, text: str):
    expected = [id for word in regex.findall(_SPLITS["V1"], text) for id in merged(word.encode())]
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode(expected) == text


def test_special_tokens_end_answers_and_turns(tokenizer: Tokenizer, tmp_path: Path):
    vocabulary = read_vocabulary(write(tmp_path), {}, SIZE)
    assert end_tokens(vocabulary) == {1, 2}
    assert all(tokenizer.is_control(id) for id in SPECIAL.values())
    template = ChatTemplate(vocabulary.chat_template, tokenizer)
    ids = template.render([{"role": "system", "content": " hell "}, {"role": "user", "content": "hello<|eos|>"}])
    words = "System: hell", 1, "\n\nHuman: hello<|eos|>", 1, "\n\nAssistant:"
    assert ids == [id for word in words for id in ([word] if isinstance(word, int) else tokenizer.encode(word))]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"word_split": "V9"}, "word_split = 'V9'"),
        ({"regular_tokens": [{"bytes": [97], "token": 0}]}, "no token for the byte 0x00"),
        ({"special_tokens": [{"bytes": [255], "token": 0}]}, "no tokenizer of this kind"),
        ({"regular_tokens": None}, "no tokenizer of this kind"),
    ],
)
def test_what_is_no_such_tokenizer(tmp_path: Path, changes: dict, message: str):
    with pytest.raises(WeightsError, match=message):
        read_tok_json(write(tmp_path, **changes) / TOK_JSON)
