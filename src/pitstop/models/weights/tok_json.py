"""Grok-2's tokenizer.tok.json as the files that Hugging Face's libraries would write for it. Imports no torch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pitstop.errors import WeightsError
from pitstop.models.weights.files import read_json, reading
from pitstop.text.tokenizer import BYTE_ALPHABET

_SPLITS = {
    "V1": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""Where words end, by the format's names."""
_EOS, _SEPARATOR = "<|eos|>", "<|separator|>"
_TURNS = {"user": "Human", "system": "System", "assistant": "Assistant"}


class Files(NamedTuple):
    """What tokenizer.json, tokenizer_config.json and generation_config.json would hold."""

    tokenizer: dict[str, Any]
    settings: dict[str, Any]
    generation: dict[str, Any]


def read_tok_json(path: Path) -> Files:
    """Tokens are given as bytes with ids that are their ranks: pairs merge lowest first, and a word that is a token stays whole.

    Raises WeightsError: another way to split words, a byte without a token, parts that are missing or of another kind.
    """
    stated = read_json(path)
    pattern = stated.get("pat_str") or _SPLITS.get(stated.get("word_split"))
    if pattern is None:
        raise WeightsError(path, f"word_split = {stated.get('word_split')!r}: not honoured yet; we have {', '.join(_SPLITS)}")
    with reading(path, "is no tokenizer of this kind"):
        ranks = {bytes(item["bytes"]): int(item["token"]) for item in stated["regular_tokens"]}
        special = {bytes(item["bytes"]).decode(): int(item["token"]) for item in stated["special_tokens"]}
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise WeightsError(path, f"has no token for the byte {missing:#04x}: some texts could not be written")
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {_spelled(token): rank for token, rank in ranks.items()},
            "merges": [[_spelled(left), _spelled(right)] for left, right in _merges(ranks)],
        },
        "added_tokens": [_added(content, id) for content, id in special.items()],
    }
    ends = [special[name] for name in (_EOS, _SEPARATOR) if name in special]
    settings = {"eos_token": _EOS, "chat_template": _chat_template()}
    return Files(tokenizer, settings, {"eos_token_id": ends} if ends else {})


def _spelled(token: bytes) -> str:
    return "".join(BYTE_ALPHABET[byte] for byte in token)


def _added(content: str, id: int) -> dict[str, Any]:
    return {"id": id, "content": content, "special": True, "normalized": False} | dict.fromkeys(("lstrip", "rstrip", "single_word"), False)


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The pair that each token comes from, by rank: the two parts that merges below its own rank leave of it.

    A token of which they leave more cannot come from merging, only from being a word.
    """
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            lowest, at = min((ranks.get(left + right, rank), i) for i, (left, right) in enumerate(pairwise(parts)))
            if lowest >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def _chat_template() -> str:
    """A name and a colon before each turn, a separator and an empty line behind it."""
    turns = "".join(
        f"{{% {'if' if role == 'user' else 'elif'} message.role == '{role}' %}}{name}: {{{{ message.content | trim }}}}{_SEPARATOR}\n\n"
        for role, name in _TURNS.items()
    )
    refuse = "{% else %}{{ raise_exception('roles are user, system and assistant') }}{% endif %}"
    answer = f"{{% if add_generation_prompt %}}{_TURNS['assistant']}:{{% endif %}}"
    return f"{{% for message in messages %}}{turns}{refuse}{{% endfor %}}{answer}"
