"""tokenizer.model files by hand, as SentencePiece writes them: protocol buffers (sentencepiece_model.proto)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class Piece(NamedTuple):
    text: str
    score: float = 0.0
    type: int = NORMAL


def varint(value: int) -> bytes:
    """A negative one as 64 bits."""
    value, out = value % (1 << 64), bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def message(fields: dict[int, int | float | bytes]) -> bytes:
    return b"".join(field(*one) for one in fields.items())


TRAINING: dict[int, int | float | bytes] = {3: 2, 35: 1, 40: 3, 41: 1, 42: 2, 43: 0}
"""BPE, a token for each byte; the ids of the unknown token, of bos, eos and padding."""
NORMALIZER: dict[int, int | float | bytes] = {1: b"identity", 2: b"", 3: 1, 4: 0, 5: 1}
"""Text as it is, with a space in front."""


def tokenizer_model(pieces: Iterable[Piece], training: dict | None = None, normalizer: dict | None = None) -> bytes:
    """training, normalizer: fields that differ, by number; None leaves one out."""
    parts = [field(1, message({1: piece.text.encode(), 2: piece.score, 3: piece.type})) for piece in pieces]
    for number, stated, changes in ((2, TRAINING, training), (3, NORMALIZER, normalizer)):
        parts.append(field(number, message({key: value for key, value in (stated | (changes or {})).items() if value is not None})))
    return b"".join(parts)


_WORDS = ("▁", "t", "h", "e", "a", "人", "th", "▁th", "▁the", "工", "人工", "▁▁")
PIECES = (
    *(Piece(text, type=CONTROL) for text in ("[PAD]", "[BOS]", "[EOS]")),
    Piece("[UNK]", type=UNKNOWN),
    *(Piece(f"<0x{byte:02X}>", type=BYTE) for byte in range(256)),
    *(Piece(text, -float(rank)) for rank, text in enumerate(_WORDS)),
)
"""272, the special ones in front as Grok-1's are."""
