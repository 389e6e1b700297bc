"""Text to token ids and back, by the model's own vocabulary: byte-level BPE (Radford et al., 2019), or what a tokenizer.json defines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from pitstop.errors import InvalidRequest, Unsupported
from pitstop.text import sentencepiece
from pitstop.text.vocabulary import TokenType, Vocabulary
from pitstop.types import TokenTable

END_TOKENS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<|EOT|>",
        "<EOT>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Spellings that end an answer in the model families in use; they count as special tokens of a vocabulary that does not state its ends."""


class Tokenizer:
    """Encodes and decodes. Thread-safe; encoding releases the interpreter lock for all but its bookkeeping.

    vocab_size: token ids are 0 … vocab_size - 1. bos, eos: ids or None. end_tokens: ids that end an answer, `eos` included.
    control_pattern: matches every spelling of a control token, the longest where several start together.

    Control tokens steer the model (turn marks, end of text) and are never written by a user; user-defined tokens (say, `<think>`) are
    whole words that every text may contain.

    A character whose UTF-8 bytes the vocabulary has no tokens for gives no tokens, as in the reference (llama.cpp). For the default
    model these are six ASCII control characters and U+40000 … U+BFFFF, where nothing is assigned.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises `Unsupported` for a tokenizer model or pre-tokenizer that is not implemented."""
        tokens, types = vocabulary.tokens, vocabulary.types
        self.vocab_size = len(tokens)
        self.bos = vocabulary.bos
        self.eos = vocabulary.eos
        self.table = token_table(vocabulary)
        self.end_tokens = self.table.ends
        self._add_bos = vocabulary.add_bos
        self._around = [*vocabulary.before], [*vocabulary.after]
        self._control = {token: i for i, token in enumerate(tokens) if types[i] in (TokenType.CONTROL, TokenType.UNKNOWN)}
        self._control |= {tokens[i]: i for i in self.end_tokens}
        self._words = {token: i for i, token in enumerate(tokens) if types[i] == TokenType.USER_DEFINED and token not in self._control}
        self.control_pattern = _any_of(self._control)
        self._word_pattern = _any_of(self._words)
        self._lead = (" " if vocabulary.add_space else "") if vocabulary.space_once else None
        if vocabulary.definition:
            self._bpe, self._bpe_inside = _defined(vocabulary.definition)
        else:
            encoder = sentencepiece.encoder if vocabulary.model == "llama" else byte_pair_encoder
            plain = replace(vocabulary, add_space=vocabulary.add_space and self._lead is None)
            self._bpe = self._bpe_inside = encoder(plain, apart=self._control.keys() | self._words.keys())

    @property
    def control_spellings(self) -> tuple[str, ...]:
        return tuple(filter(None, self._control))

    def encode(self, text: str, control: bool = False, inside: bool = False) -> list[int]:
        """Token ids of `text`, without a leading `bos`.

        control: spellings of control tokens become those tokens; else they are plain text like any other. inside: the text goes on from
        other tokens, so that it gets no space in front where a vocabulary begins texts with one.
        Raises `InvalidRequest` for a lone surrogate, which has no UTF-8.
        """
        _refuse_surrogates(text)
        ids: list[int] = []
        for piece in self.split_control(text) if control else [text]:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                self._encode_plain(piece, ids, inside or bool(ids))
        return ids

    def encode_prompt(self, text: str, control: bool = False) -> list[int]:
        """As `encode`, with `bos` in front where the model was trained so. For prompts that no chat template made."""
        ids = self.encode(text, control)
        return [self.bos, *ids] if self._add_bos and self.bos is not None else ids

    def encode_text(self, text: str) -> list[int]:
        """As `encode`, with what the model was trained to have around a text that it embeds."""
        before, after = self._around
        return [*before, *self.encode(text), *after] if before or after else self.encode_prompt(text)

    def split_control(self, text: str) -> Iterator[int | str]:
        """`text` cut at the spellings of control tokens: ids and the plain, non-empty strings between them, in order."""
        return _cut(text, self.control_pattern, self._control)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, control tokens by their spelling; bytes that are not UTF-8 become U+FFFD.

        Raises `InvalidRequest` for an id outside the vocabulary.
        """
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, perhaps a part of a character; a control token's spelling in UTF-8.

        Raises `InvalidRequest` for an id outside the vocabulary.
        """
        if not 0 <= token < self.vocab_size:
            raise InvalidRequest(f"token id {token} is outside the vocabulary of {self.vocab_size}", "tokens")
        return self.table.data[token]

    def is_control(self, token: int) -> bool:
        return token in self.table.control

    def _encode_plain(self, text: str, ids: list[int], inside: bool) -> None:
        if self._lead is not None and text:  # before the text is cut, since words may hold spaces; both spellings of a space are one
            text = ("" if inside or ids else self._lead) + text.replace(sentencepiece.SPACE, " ")
        for piece in _cut(text, self._word_pattern, self._words):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                # The batch call is the one that releases the interpreter lock; one text a batch keeps it on one core.
                bpe = self._bpe_inside if inside or ids else self._bpe
                ids += bpe.encode_batch_fast([piece], add_special_tokens=False)[0].ids


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InvalidRequest(f"the text has a lone surrogate (U+{code:04X}) at character {error.start}; send valid Unicode") from None


def end_tokens(vocabulary: Vocabulary) -> frozenset[int]:
    """Ids that end an answer: `eos` and the `ends` that the vocabulary states, or else the spellings in END_TOKENS that are special."""
    special = (TokenType.CONTROL, TokenType.USER_DEFINED)
    spelled = (id for id, kind in enumerate(vocabulary.types) if kind in special and vocabulary.tokens[id] in END_TOKENS)
    ends = frozenset(vocabulary.ends or spelled)
    return ends if vocabulary.eos is None else ends | {vocabulary.eos}


def token_table(vocabulary: Vocabulary) -> TokenTable:
    """What each id stands for. Needs no more than a pass over the tokens."""
    ends = end_tokens(vocabulary)
    control = ends | {i for i, kind in enumerate(vocabulary.types) if kind in (TokenType.CONTROL, TokenType.UNKNOWN)}
    kinds = (TokenType.CONTROL if i in control else kind for i, kind in enumerate(vocabulary.types))
    data = [_bytes_of(token, kind, vocabulary.model) for token, kind in zip(vocabulary.tokens, kinds, strict=True)]
    return TokenTable(data, frozenset(control), ends)


def _bytes_of(spelling: str, kind: int, model: str) -> bytes:
    """model: as in a Vocabulary."""
    if kind in (TokenType.CONTROL, TokenType.USER_DEFINED):
        return spelling.encode()
    if kind == TokenType.BYTE:
        return bytes([int(spelling[3:5], 16)])  # <0xAB>
    if model == "bert":
        return (spelling[2:] if spelling.startswith("##") else f" {spelling}").encode()
    if model in ("llama", "t5"):
        return spelling.replace(sentencepiece.SPACE, " ").encode()
    try:
        return spelling.translate(_LATIN1_OF_SPELLING).encode("latin-1")
    except UnicodeEncodeError:  # not in the byte-level alphabet: stands for itself
        return b"".join(_BYTE_OF_SPELLING[c] if c in _BYTE_OF_SPELLING else c.encode() for c in spelling)


def _any_of(spellings: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of all spellings, the longest first; None for none."""
    ordered = sorted(filter(None, spellings), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _cut(text: str, pattern: re.Pattern[str] | None, ids: dict[str, int]) -> Iterator[int | str]:
    end = 0
    for match in pattern.finditer(text) if pattern else ():
        if match.start() > end:
            yield text[end : match.start()]
        yield ids[match.group()]
        end = match.end()
    if end < len(text):
        yield text[end:]


def _byte_alphabet() -> list[str]:
    """GPT-2's spelling of bytes: printable Latin-1 characters stand for themselves, the rest for U+0100, U+0101, … in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


BYTE_ALPHABET = _byte_alphabet()
_BYTE_OF_SPELLING = {spelling: bytes([byte]) for byte, spelling in enumerate(BYTE_ALPHABET)}
_LATIN1_OF_SPELLING = {ord(spelling): byte for byte, spelling in enumerate(BYTE_ALPHABET)}

_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


class _Pattern(NamedTuple):
    """What a pre-tokenizer's name stands for: a pattern of words; whether a word that is a token stays whole, however it would merge;
    whether prompts begin with `bos` where the file does not say."""

    words: str
    whole_words: bool = False
    add_bos: bool = False


_PATTERNS = {"qwen2": _Pattern(_QWEN2)} | dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _Pattern(_LLAMA3, True, True))
"""By GGUF's names."""


def begins_with_bos(pre: str) -> bool:
    """Whether prompts begin with `bos` for a pre-tokenizer of this name, where a GGUF file does not say."""
    return pre in _PATTERNS and _PATTERNS[pre].add_bos


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut into words before merging, by GGUF's name of it. Raises `Unsupported`."""
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in ("gpt-2", "gpt2"):
        return gpt2
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if name in _PATTERNS:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_PATTERNS[name].words), "isolated"), plain])
    raise Unsupported(f"pre-tokenizer {name!r}: this build has smollm, gpt-2, llama-bpe and qwen2")


def byte_pair_encoder(vocabulary: Vocabulary, apart: set[str]) -> tokenizers.Tokenizer:
    """The merging itself. Tokens in `apart` are left out, so that plain text can never merge into one."""
    if vocabulary.model != "gpt2":
        raise Unsupported(f"tokenizer model {vocabulary.model!r}: this build has gpt2 (byte-level BPE) and llama (SentencePiece)")
    pre_tokenizer = _pre_tokenizer(vocabulary.pre)
    ids = {token: i for i, token in enumerate(vocabulary.tokens) if token not in apart}
    pairs = (merge.partition(" ") for merge in vocabulary.merges)
    merges = [(left, right) for left, _, right in pairs if apart.isdisjoint((left, right, left + right))]
    whole_words = vocabulary.pre in _PATTERNS and _PATTERNS[vocabulary.pre].whole_words
    try:
        bpe = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=whole_words))
    except Exception as error:  # the library raises plain Exception
        raise Unsupported(f"the vocabulary's merges do not fit its tokens: {error}") from error
    bpe.pre_tokenizer = pre_tokenizer
    return bpe


def _defined(definition: str) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """The tokenizer of a tokenizer.json, and the same for text that does not begin a prompt. Raises `Unsupported`."""
    inside = json.loads(definition)
    for step in _steps(inside.get("pre_tokenizer")):
        if step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
    try:
        first = tokenizers.Tokenizer.from_str(definition)
        return first, first if inside == json.loads(definition) else tokenizers.Tokenizer.from_str(json.dumps(inside))
    except Exception as error:  # the library raises plain Exception
        raise Unsupported(f"tokenizer.json: the tokenizers library does not take it: {error}") from error


def _steps(step: dict | None) -> list[dict]:
    return [] if step is None else [step, *(inner for part in step.get("pretokenizers", ()) for inner in _steps(part))]
