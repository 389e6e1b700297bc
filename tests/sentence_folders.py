"""What sentence-transformers folders hold beside weights: encoders' tokenizers, trained on a few lines, and modules.json. No torch."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The cat sat on the mat while it rained; nobody minded, for the mat was dry.",
    "Capital cities: Paris, Berlin, Rome, Madrid. Which of them is the capital of France?",
    "人工智能 是 一门 科学。 今天 天气 很好。",
    "Embeddings of texts, 1234567890 of them, lie near each other when the texts mean the same.",
]
TEXTS = [
    "The capital of France is Paris.",
    "x",
    "Naïve Zoë, 人工智能!",
    "word " * 90,
    "the cat sat on the mat, " * 7,
    "[CLS] a [MASK] <s> b </s> <mask> [SEP] [PAD]",
    "  two  spaces\tand\na line ",
    "🙂 unknown characters ✈",
]
"""Of very uneven lengths; some hold what looks like special tokens, or characters that no tokenizer here knows."""


def write_modules(folder: Path, pooling: str, normalize: bool, width: object) -> None:
    """modules.json and what it names, as the sentence-transformers library writes them."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
    stated = {"word_embedding_dimension": width, "pooling_mode_max_tokens": False} | {mode: name == pooling for name, mode in modes.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated))


def wordpiece() -> Tokenizer:
    """As BERT's."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(16)  # as many models' files have it; a server cuts nothing
    tokenizer.enable_padding(length=20)
    return tokenizer


def unigram() -> Tokenizer:
    """As XLM-RoBERTa's: pieces with scores, ▁ for a space, special tokens among the pieces."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return tokenizer


def byte_level(mask: bool = True) -> Tokenizer:
    """As RoBERTa's. mask: with a token that takes the space before it."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=350, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if mask:
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    return tokenizer
