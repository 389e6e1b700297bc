"""tokenizer.model as the sentencepiece library reads it (its answers are in tests/data), and what of it is refused."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from tokenizer_models import PIECES, UNUSED, USER_DEFINED, Piece, field, tokenizer_model

from pitstop.errors import Unsupported, WeightsError
from pitstop.models.weights.files import TOKENIZER_MODEL
from pitstop.models.weights.tokenizer_json import read_vocabulary
from pitstop.text.tokenizer import Tokenizer
from pitstop.text.vocabulary import Vocabulary

MADE = json.loads((Path(__file__).parents[2] / "data" / "sentencepiece.json").read_text("utf-8"))


def read(folder: Path, data: bytes, size: int = len(PIECES), config: dict | None = None, **more: bool) -> Vocabulary:
    (folder / TOKENIZER_MODEL).write_bytes(data)
    return read_vocabulary(folder, config or {}, size, **more)


@pytest.mark.parametrize("name", MADE["models"])
def test_ids_and_texts_are_the_library_s(tmp_path: Path, name: str) -> None:
    made = MADE["models"][name]
    vocabulary = read(tmp_path, base64.b64decode(made["model"]), 448)
    tokenizer = Tokenizer(vocabulary)
    assert (vocabulary.bos, vocabulary.eos, tokenizer.vocab_size, tokenizer.end_tokens) == (1, 2, 448, {2})
    for text, ids, decoded in zip(MADE["texts"], made["ids"], made["decoded"], strict=True):
        assert tokenizer.encode(text) == tokenizer.encode_prompt(text) == ids, text
        space = " " if vocabulary.add_space and text else ""  # of which the library keeps nothing
        assert tokenizer.decode(ids) == space + decoded, text


def spelled(vocabulary: Vocabulary, text: str, **how: bool) -> list[str]:
    return [vocabulary.tokens[id] for id in Tokenizer(vocabulary).encode(text, **how)]


def test_only_a_text_s_beginning_gets_a_space(tmp_path: Path) -> None:
    words = [Piece("<w>", type=USER_DEFINED), Piece("a▁a", type=USER_DEFINED)]
    vocabulary = read(tmp_path, tokenizer_model([*PIECES, *words]), len(PIECES) + 2)
    assert spelled(vocabulary, "the<w>the a") == ["▁the", "<w>", "th", "e", "▁", "a"]
    assert spelled(vocabulary, "<w>the") == ["▁", "<w>", "th", "e"]
    assert spelled(vocabulary, "the", inside=True) == ["th", "e"]
    assert spelled(vocabulary, "the[EOS]the", control=True) == ["▁the", "[EOS]", "th", "e"]
    assert spelled(vocabulary, "ta a") == spelled(vocabulary, "ta▁a") == ["▁", "t", "a a"]
    assert Tokenizer(vocabulary).decode([len(PIECES) + 1]) == "a a"
    bare = read(tmp_path, tokenizer_model(PIECES, normalizer={3: 0}))
    assert spelled(bare, "the") == ["th", "e"]


def test_what_lies_beside_is_honoured(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "chat_template": "from the settings"}))
    vocabulary = read(tmp_path, tokenizer_model(PIECES), config={"eos_token_id": [2, 0]})
    assert (vocabulary.add_bos, vocabulary.chat_template, vocabulary.ends) == (True, "from the settings", (2, 0))
    assert Tokenizer(vocabulary).encode_prompt("the") == [1, 268]
    (tmp_path / "chat_template.jinja").write_text("from a file")
    assert read(tmp_path, tokenizer_model(PIECES)).chat_template == "from a file"


def test_what_is_not_stated_is_the_format_s_default(tmp_path: Path) -> None:
    vocabulary = read(tmp_path, tokenizer_model(PIECES, {41: None, 42: None}, {3: None, 5: None}))
    assert (vocabulary.bos, vocabulary.eos, vocabulary.add_space) == (1, 2, True)
    vocabulary = read(tmp_path, tokenizer_model(PIECES, {41: -1, 42: -1}))
    assert (vocabulary.bos, vocabulary.eos) == (None, None)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"training": {3: 1}}, "model_type = 1 is not honoured yet"),
        ({"training": {3: None}}, "model_type = 1 is not honoured yet"),
        ({"training": {24: 1}}, "treat_whitespace_as_suffix = 1"),
        ({"normalizer": {2: b"\1\2"}}, "precompiled_charsmap = 2 bytes"),
        ({"normalizer": {4: None}}, "remove_extra_whitespaces = 1"),
        ({"normalizer": {5: 0}}, "escape_whitespaces = 0"),
        ({"pieces": [*PIECES[:-1], Piece("x", type=UNUSED)]}, "piece 271 is unused"),
        ({"pieces": [*PIECES, Piece("x")]}, "has 273 pieces, for a vocabulary of 272"),
        ({"pieces": []}, "has 0 pieces"),
        ({"pieces": [*PIECES[:-1], Piece("x", type=9)]}, "is no tokenizer as SentencePiece writes it"),
    ],
)
def test_what_is_not_honoured_is_refused(tmp_path: Path, changes: dict, complaint: str) -> None:
    with pytest.raises(WeightsError, match=rf"tokenizer\.model.*{re.escape(complaint)}"):
        read(tmp_path, tokenizer_model(**({"pieces": PIECES} | changes)))


def test_a_denormalizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="precompiled_charsmap = 8 bytes"):
        read(tmp_path, tokenizer_model(PIECES) + field(5, field(2, b"charsmap")))


def test_a_byte_without_a_piece_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no token <0x41>"):
        Tokenizer(read(tmp_path, tokenizer_model(piece for piece in PIECES if piece.text != "<0x41>")))


def test_texts_that_are_embedded_need_more(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="what stands around a text"):
        read(tmp_path, tokenizer_model(PIECES), embeds=True)


@pytest.mark.parametrize(
    "data", [tokenizer_model(PIECES)[:-3], b"\xff" * 20, b"\x0b", b"{}", field(1, 5), field(1, field(1, 7)) + tokenizer_model(PIECES[1:])]
)
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(WeightsError, match="is no tokenizer as SentencePiece writes it"):
        read(tmp_path, data)
