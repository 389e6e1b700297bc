"""SentencePiece's tokenizer.model: a protocol buffer, as sentencepiece_model.proto of its sources describes it. Imports no torch."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pitstop.errors import WeightsError
from pitstop.text.sentencepiece import SPACE
from pitstop.text.vocabulary import TokenType, Vocabulary

_PIECES, _TRAINING, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5
_SPELLING, _SCORE, _TYPE = 1, 2, 3


_BPE = 2
"""Of the ways of cutting text: 1 Unigram, 2 BPE, 3 words, 4 characters."""
_BOS, _EOS, _ADD_SPACE = (41, 1), (42, 2), (3, 1)
"""Of the first two messages below: a field's number, and its value where it is not stated."""
_CHARSMAP = {"precompiled_charsmap": (2, b"", b"")}
_HONOURED: dict[int, dict[str, tuple[int, Any, Any]]] = {
    _TRAINING: {"model_type": (3, 1, _BPE), "treat_whitespace_as_suffix": (24, 0, 0)},
    _NORMALIZER: _CHARSMAP | {"remove_extra_whitespaces": (4, 1, 0), "escape_whitespaces": (5, 1, 1)},
    _DENORMALIZER: _CHARSMAP,
}
"""Of a field its number, its value where it is not stated, and the only one that we honour."""


def read_tokenizer_model(path: Path, vocab_size: int) -> Vocabulary:
    """The vocabulary: pieces and their scores, for BPE on text as it is. The library puts no token in front of a text; nor does this.

    Ids up to `vocab_size` that the file has no piece for stand for no text.
    Raises WeightsError: no such file, more pieces than ids, or a way of cutting or normalising text that is not honoured.
    """
    try:
        return _vocabulary(path, path.read_bytes(), vocab_size)
    except OSError as error:
        raise WeightsError(path, f"cannot be read: {error.strerror}; fetch the folder again") from error
    except (LookupError, ValueError, TypeError, AttributeError, struct.error) as error:
        raise WeightsError(path, f"is no tokenizer as SentencePiece writes it ({type(error).__name__}: {error})") from error


def _vocabulary(path: Path, data: bytes, vocab_size: int) -> Vocabulary:
    pieces: list[dict[int, Any]] = []
    parts: dict[int, dict[int, Any]] = {number: {} for number in _HONOURED}
    for number, value in _fields(data):
        if number == _PIECES:
            pieces.append(dict(_fields(value)))
        elif number in parts:
            parts[number] |= dict(_fields(value))
    for number, stated in parts.items():
        _refuse(path, stated, _HONOURED[number])
    types = [int(TokenType(piece.get(_TYPE, TokenType.NORMAL))) for piece in pieces]
    if not 0 < len(pieces) <= vocab_size:
        raise WeightsError(path, f"has {len(pieces)} pieces, for a vocabulary of {vocab_size}")
    if TokenType.UNUSED in types:
        raise WeightsError(path, f"piece {types.index(TokenType.UNUSED)} is unused, and text would merge through it: not honoured yet")
    padding = vocab_size - len(pieces)
    return Vocabulary(
        model="llama",
        pre="",
        tokens=[_spelled(piece[_SPELLING].decode(), kind) for piece, kind in zip(pieces, types, strict=True)] + [""] * padding,
        types=types + [int(TokenType.UNUSED)] * padding,
        merges=[],
        bos=_id(parts[_TRAINING], *_BOS, len(pieces)),
        eos=_id(parts[_TRAINING], *_EOS, len(pieces)),
        scores=[struct.unpack("<f", piece.get(_SCORE, bytes(4)))[0] for piece in pieces] + [0.0] * padding,
        add_space=bool(parts[_NORMALIZER].get(*_ADD_SPACE)),
        space_once=True,
    )


def _refuse(path: Path, stated: dict[int, Any], honoured: dict[str, tuple[int, Any, Any]]) -> None:
    for name, (number, default, ours) in honoured.items():
        if (value := stated.get(number, default)) != ours:
            shown = f"{len(value)} bytes" if isinstance(value, bytes) else value
            raise WeightsError(path, f"{name} = {shown} is not honoured yet; a tokenizer.json beside it would be read instead")


def _spelled(piece: str, kind: int) -> str:
    """A user-defined word is looked for in the text, which has spaces."""
    return piece.replace(SPACE, " ") if kind == TokenType.USER_DEFINED else piece


def _id(stated: dict[int, Any], number: int, default: int, count: int) -> int | None:
    """A token's id; None where the file says, by -1, that there is none."""
    id = stated.get(number, default)
    return id if id < count else None


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: numbers, and integers or bytes (of a fixed width, or of a length that is stated)."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        else:
            if kind == 2:
                size, at = _varint(data, at)
            else:
                size = {1: 8, 5: 4}[kind]
            value, at = data[at : at + size], at + size
            if at > len(data):
                raise ValueError("it ends within a field")
        yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at `at`, without its sign, and where the next one begins."""
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("an integer of more than 64 bits")
