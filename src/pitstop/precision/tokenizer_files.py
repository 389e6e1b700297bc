"""A GGUF file's vocabulary as the files of a folder: tokenizer.json, its settings, end tokens and chat template."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer as Definition
from tokenizers import decoders

from pitstop.text import sentencepiece
from pitstop.text.tokenizer import byte_pair_encoder, end_tokens
from pitstop.text.vocabulary import TokenType, Vocabulary


def tokenizer_files(vocabulary: Vocabulary) -> dict[str, str]:
    """Contents by file name. A reader of the folder gives every text the ids that a reader of the GGUF file gives it.

    Raises Unsupported for a tokenizer that is not implemented.
    """
    ends = sorted(end_tokens(vocabulary))
    files = {
        "tokenizer.json": _dump(tokenizer_json(vocabulary)),
        "tokenizer_config.json": _dump(_settings(vocabulary)),
        "generation_config.json": _dump({"bos_token_id": vocabulary.bos, "eos_token_id": ends}),
    }
    return files | ({"chat_template.jinja": vocabulary.chat_template} if vocabulary.chat_template else {})


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """As the tokenizers library writes it."""
    spaced = vocabulary.model == "llama"
    encoder: Definition = sentencepiece.encoder(vocabulary, ()) if spaced else byte_pair_encoder(vocabulary, set())
    encoder.decoder = _decoder(vocabulary)
    stated = json.loads(encoder.to_str())
    stated["model"]["vocab"] = {token: id for id, token in enumerate(vocabulary.tokens)}
    stated["added_tokens"] = _added(vocabulary)
    if vocabulary.add_bos and vocabulary.bos is not None:
        stated["post_processor"] = _in_front(vocabulary.tokens[vocabulary.bos], vocabulary.bos)
    return stated


def _decoder(vocabulary: Vocabulary) -> decoders.Decoder:
    if vocabulary.model != "llama":
        return decoders.ByteLevel()
    steps = [decoders.Replace(sentencepiece.SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if vocabulary.add_space else steps)


def _added(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Tokens that are looked for before the text is cut into words: those that steer the model, and whole words."""
    ends = end_tokens(vocabulary)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = []
    for id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        steers = kind in (TokenType.CONTROL, TokenType.UNKNOWN) or id in ends
        if steers or kind == TokenType.USER_DEFINED:
            added.append({"id": id, "content": token, **plain, "special": steers})
    return added


def _in_front(token: str, id: int) -> dict[str, Any]:
    """The step that puts `token` before a text."""
    special, text = {"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    other = {"Sequence": {"id": "B", "type_id": 1}}
    tokens = {token: {"id": token, "ids": [id], "tokens": [token]}}
    return {"type": "TemplateProcessing", "single": [special, text], "pair": [special, text, other], "special_tokens": tokens}


def _settings(vocabulary: Vocabulary) -> dict[str, Any]:
    named = {"bos_token": vocabulary.bos, "eos_token": vocabulary.eos}
    tokens = {name: vocabulary.tokens[id] for name, id in named.items() if id is not None}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **tokens}


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
