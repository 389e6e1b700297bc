"""Byte-pair encoding by scores, as SentencePiece does it (Kudo and Richardson 2018): ▁ for a space, and a token for each byte."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import tokenizers
from tokenizers import models, normalizers

from pitstop.errors import Unsupported
from pitstop.text.vocabulary import TokenType, Vocabulary

SPACE = "▁"


def encoder(vocabulary: Vocabulary, apart: Collection[str]) -> tokenizers.Tokenizer:
    """The encoder of a vocabulary with scores. Tokens in `apart` are left out, so that plain text can never merge into one.

    SentencePiece merges the neighbours whose union has the best score; this ranks every way of putting a token together by its score.
    Raises `Unsupported` when the vocabulary has no scores or lacks the token of a byte.
    """
    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise Unsupported(f"tokenizer model llama: {len(vocabulary.scores)} scores for {len(vocabulary.tokens)} tokens")
    if missing := {f"<0x{byte:02X}>" for byte in range(256)}.difference(vocabulary.tokens):
        raise Unsupported(f"tokenizer model llama: the vocabulary has no token {min(missing)}, and so not one for each byte")
    usable = (TokenType.NORMAL, TokenType.BYTE)
    ids = {token: id for id, token in enumerate(vocabulary.tokens) if vocabulary.types[id] in usable and token not in apart}
    ranked = sorted(
        ((-vocabulary.scores[id], id, token) for token, id in ids.items() if vocabulary.types[id] == TokenType.NORMAL and len(token) > 1)
    )
    merges = [pair for _, _, token in ranked for pair in _pairs(token, ids)]
    bpe = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, byte_fallback=True))
    spaces = normalizers.Replace(" ", SPACE)
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if vocabulary.add_space else spaces
    return bpe


def _pairs(token: str, ids: dict[str, int]) -> Iterator[tuple[str, str]]:
    """The ways of putting `token` together from two others."""
    for cut in range(1, len(token)):
        if token[:cut] in ids and token[cut:] in ids:
            yield token[:cut], token[cut:]
