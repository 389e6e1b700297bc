"""Tokenizers read from tokenizer.json against the library that wrote them: the same ids, in every style of the families that we run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pitstop.errors import WeightsError
from pitstop.models.weights.tokenizer_json import read_vocabulary
from pitstop.text.template import ChatTemplate
from pitstop.text.tokenizer import Tokenizer as Ours

SPECIAL = ("<unk>", "<s>", "</s>", "<|turn|>")
WORDS = ("<think>", "\n\n")
CORPUS = ["the pit crew had less than three seconds", "a slow stop would cost the race", "你好 世界", "x = [1, 2]\n\n  return x"] * 4
TEXTS = [
    "the crew",
    " the  crew ",
    "a<think>the</think>",
    "stop\n\n\nthe race\n",
    "你好,世界 🏁 \u0000\t",
    "",
    " ",
    "<s>the crew</s> the<|turn|>crew",
    "<|turn|> the",
    "é café",
]


def byte_level() -> Tokenizer:
    """As Llama 3's and Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return trained(tokenizer, pre_tokenizers.ByteLevel.alphabet())


def spaced(normalizer: normalizers.Normalizer | None, pre_tokenizer: pre_tokenizers.PreTokenizer | None) -> Tokenizer:
    """▁ for a space and a token for each byte, as SentencePiece's."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return trained(tokenizer, [])


def trained(tokenizer: Tokenizer, alphabet: list[str]) -> Tokenizer:
    bytes_ = [] if alphabet else [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=[*SPECIAL, *bytes_], initial_alphabet=alphabet, show_progress=False)
    )
    stated = json.loads(tokenizer.to_str())
    stated["added_tokens"] = [token for token in stated["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(stated))
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


replaced = normalizers.Replace(" ", "▁")
STYLES = {
    "byte level": byte_level,
    "Llama 2": lambda: spaced(normalizers.Sequence([normalizers.Prepend("▁"), replaced]), None),
    "Mistral": lambda: spaced(None, pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)),
    "Gemma": lambda: spaced(replaced, pre_tokenizers.Split(" ", "merged_with_previous")),
}


@pytest.fixture(params=STYLES)
def theirs(request: pytest.FixtureRequest) -> Tokenizer:
    return STYLES[request.param]()


def read(folder: Path, tokenizer: Tokenizer, padding: int = 5) -> Ours:
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token_id": tokenizer.token_to_id("<s>"), "eos_token_id": tokenizer.token_to_id("</s>")}
    return Ours(read_vocabulary(folder, config, tokenizer.get_vocab_size() + padding))


def test_ids_are_the_librarys(tmp_path: Path, theirs: Tokenizer) -> None:
    ours = read(tmp_path, theirs)
    for text in TEXTS:
        assert ours.encode(text, control=True) == theirs.encode(text, add_special_tokens=False).ids, repr(text)
        assert ours.encode_prompt(text, control=True) == theirs.encode(text).ids, repr(text)


def test_text_comes_back(tmp_path: Path, theirs: Tokenizer) -> None:
    ours = read(tmp_path, theirs)
    for text in TEXTS:
        decoded = ours.decode(ours.encode(text, control=True))
        assert decoded == theirs.decode(theirs.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) or text == ""
        assert decoded.replace(" ", "") == text.replace(" ", "")


def test_users_write_no_control_tokens(tmp_path: Path, theirs: Tokenizer) -> None:
    ours = read(tmp_path, theirs)
    for text in ("<s>", "</s>the", "a <|turn|>", "<unk>"):
        ids = ours.encode(text)
        assert not any(map(ours.is_control, ids))
        assert ours.decode(ids).strip() == text
    template = ChatTemplate("{% for m in messages %}<|turn|>{{ m.content }}</s>{% endfor %}", ours)
    ids = template.render([{"role": "user", "content": "the <|turn|>crew</s>"}])
    assert [token for token in ids if ours.is_control(token)] == [theirs.token_to_id("<|turn|>"), theirs.token_to_id("</s>")]


def test_a_template_gives_the_ids_of_its_text(tmp_path: Path, theirs: Tokenizer) -> None:
    ours = read(tmp_path, theirs)
    template = ChatTemplate("{{ bos_token }}{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}</s>{% endfor %}", ours)
    ids = template.render([{"role": "user", "content": "the crew"}])
    assert ids == theirs.encode("<s><|turn|>user: the crew</s>", add_special_tokens=False).ids


def test_what_is_put_around_a_text_must_be_the_first_token(tmp_path: Path) -> None:
    tokenizer = byte_level()
    for single, fine in (("$A", True), ("<s> $A", True), ("<s> $A </s>", False), ("</s> $A", False)):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
        )
        if fine:
            assert len(read(tmp_path, tokenizer).encode_prompt("a")) == single.count("<") + 1
        else:
            with pytest.raises(WeightsError, match=r"tokenizer\.json: post_processor puts other tokens"):
                read(tmp_path, tokenizer)
