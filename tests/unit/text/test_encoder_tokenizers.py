"""WordPiece and Unigram from tokenizer.json against the tokenizers library itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sentence_folders import TEXTS, byte_level, unigram, wordpiece
from tokenizers import Tokenizer, processors

from pitstop.errors import WeightsError
from pitstop.models.weights.tokenizer_json import read_vocabulary
from pitstop.text.tokenizer import Tokenizer as Ours

KINDS = {"WordPiece": wordpiece, "Unigram": unigram, "byte-level BPE": byte_level}
PLAIN = [text for text in TEXTS if "[CLS]" not in text]


@pytest.fixture(params=KINDS)
def theirs(request: pytest.FixtureRequest) -> Tokenizer:
    return KINDS[request.param]()


def read(folder: Path, tokenizer: Tokenizer, embeds: bool = True) -> Ours:
    tokenizer.save(str(folder / "tokenizer.json"))
    return Ours(read_vocabulary(folder, {}, tokenizer.get_vocab_size() + 3, embeds))


def test_ids_are_the_librarys_and_nothing_is_cut(tmp_path: Path, theirs: Tokenizer) -> None:
    ours = read(tmp_path, theirs)
    theirs.no_truncation()
    theirs.no_padding()
    for text in PLAIN:
        assert ours.encode_text(text) == theirs.encode(text).ids, repr(text)
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, repr(text)
    assert len(ours.encode_text("the cat " * 50)) > 16


def test_users_write_no_special_tokens(tmp_path: Path, theirs: Tokenizer) -> None:
    ours = read(tmp_path, theirs)
    unknown = theirs.token_to_id("[UNK]" if theirs.token_to_id("[UNK]") is not None else "<unk>")
    special = {token.content: id for id, token in theirs.get_added_tokens_decoder().items()}
    assert len(special) == 5
    for text in (*special, "a<mask>b [SEP]"):
        ids = ours.encode(text)
        assert ids
        assert not {id for id in ids if ours.is_control(id)} - {unknown}, text
    marked = ours.encode(next(iter(special)), control=True)
    assert marked == [special[next(iter(special))]]


def test_ids_have_text(tmp_path: Path, theirs: Tokenizer) -> None:
    ours = read(tmp_path, theirs)
    assert ours.decode(ours.encode("the cat sat")).strip() == "the cat sat"


def test_a_decoder_made_to_embed_may_have_an_end_token_around(tmp_path: Path) -> None:
    """As Qwen 3's embedding models: their last token's state is the embedding."""
    tokenizer = byte_level(mask=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    with pytest.raises(WeightsError, match="around a text"):
        read(tmp_path, tokenizer, embeds=False)
    ours = read(tmp_path, tokenizer)
    assert ours.encode_text("the cat") == [*ours.encode("the cat"), 2]
    assert ours.encode_prompt("the cat") == ours.encode("the cat")


def test_a_unigram_without_marked_spaces_is_refused(tmp_path: Path) -> None:
    tokenizer = json.loads(unigram().to_str()) | {"pre_tokenizer": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(WeightsError, match="does not write spaces"):
        read_vocabulary(tmp_path, {}, 500, embeds=True)
