"""A folder's tokenizer: tokenizer.json (or what stands in for it), its settings, end tokens and chat template. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pitstop.errors import WeightsError
from pitstop.models.weights.files import TOK_JSON, TOKENIZER_JSON, TOKENIZER_MODEL, TOKENIZERS, read_json, read_json_if_there, reading
from pitstop.models.weights.tok_json import read_tok_json
from pitstop.models.weights.tokenizer_model import read_tokenizer_model
from pitstop.text.vocabulary import TokenType, Vocabulary

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def read_vocabulary(folder: Path, config: Mapping[str, Any], vocab_size: int, embeds: bool = False) -> Vocabulary:
    """The vocabulary of a folder whose config.json holds `config`. embeds: of a model whose texts have tokens around them on both sides.

    Ids that the tokenizer has no token for (rows that only pad the matrix) stand for no text. Added tokens beyond `vocab_size` have no
    embedding and are left out.
    Raises WeightsError naming the file: a part is missing, of another kind, or outside the vocabulary.
    """
    path = next(filter(Path.exists, (folder / name for name in TOKENIZERS)), folder / TOKENIZER_JSON)
    settings, generation = (read_json_if_there(folder / name) for name in ("tokenizer_config.json", "generation_config.json"))
    if path.name == TOKENIZER_MODEL and embeds:
        raise WeightsError(path, "does not say what stands around a text that is embedded; add a tokenizer.json")
    if path.name == TOKENIZER_MODEL:
        template, ends = _chat_template(folder, settings), _ends(folder, generation, config, vocab_size)
        add_bos = settings.get("add_bos_token") is True
        return replace(read_tokenizer_model(path, vocab_size), add_bos=add_bos, chat_template=template, ends=ends)
    if path.name == TOK_JSON:
        files = read_tok_json(path)
        stated, settings, generation = files.tokenizer, files.settings | settings, files.generation | generation
    else:
        stated = read_json(path)
    with reading(path, "is no tokenizer as the tokenizers library writes it"):
        model = _spelling(path, stated, embeds)
        words = _words(stated["model"])
        added = {token["content"]: token for token in stated.get("added_tokens") or []}
        tokens, types = _tokens(path, words, added, vocab_size, model)
        ids = words | {content: token["id"] for content, token in added.items()}
        definition = _definition(stated, {content for content, token in added.items() if token["special"]})
        around = _around(stated)
    bos, eos = (_special(settings, config, ids, name) for name in ("bos", "eos"))
    before, after = around or ([], [])
    if (after or before not in ([], [bos])) and not embeds:
        raise WeightsError(path, "post_processor puts other tokens than the first one around a text, which is not honoured yet")
    for name, token in (("bos", bos), ("eos", eos)):
        if token is not None and not 0 <= token < vocab_size:
            raise WeightsError(folder / "config.json", f"{name}_token_id = {token} is outside the vocabulary of {vocab_size}")
    return Vocabulary(
        model=model,
        pre="",
        tokens=tokens,
        types=types,
        merges=[],
        bos=bos,
        eos=eos,
        add_bos=bos is not None and (settings.get("add_bos_token") is True if around is None else before == [bos]),
        chat_template=_chat_template(folder, settings),
        definition=definition,
        ends=_ends(folder, generation, config, vocab_size),
        before=tuple(before),
        after=tuple(after),
    )


def _parts(node: Any) -> Iterator[dict[str, Any]]:
    """A step of the tokenizer's pipeline and those that it is a sequence of."""
    if isinstance(node, dict):
        yield node
        for name in ("normalizers", "pretokenizers", "decoders", "processors"):
            for inner in node.get(name, ()):
                yield from _parts(inner)


def _spelling(path: Path, stated: dict[str, Any], embeds: bool) -> str:
    """How tokens spell text, by GGUF's names: "gpt2" is byte-level, "llama" has ▁ for a space and <0xAB> for a byte.

    "bert" is WordPiece (## goes on with a word), "t5" Unigram (▁ for a space): these have an unknown token for what they cannot spell.
    """
    model = stated["model"]
    if embeds and model.get("type") == "WordPiece":
        return "bert"
    if embeds and model.get("type") == "Unigram":
        if not any(part["type"] == "Metaspace" for part in _parts(stated.get("pre_tokenizer"))):
            raise WeightsError(path, "a Unigram tokenizer that does not write spaces as ▁, which is not honoured yet")
        return "t5"
    if model.get("type", "BPE") != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        what = f"a tokenizer of type {model.get('type')!r} or with prefixes and suffixes"
        raise WeightsError(path, f"{what}; we have BPE without these, for encoders WordPiece and Unigram")
    kinds = {part["type"] for step in ("pre_tokenizer", "decoder") for part in _parts(stated.get(step))}
    for token in stated.get("added_tokens") or []:
        if (token["lstrip"] or token["rstrip"] or token["single_word"]) and not (embeds and token["special"]):
            raise WeightsError(path, f"added token {token['content']!r} takes the space around it or stands alone only: not honoured yet")
    if "ByteLevel" in kinds:
        return "gpt2"
    if model.get("byte_fallback"):
        return "llama"
    raise WeightsError(path, "neither byte-level nor with a token for each byte: some texts could not be written")


def _words(model: dict[str, Any]) -> dict[str, int]:
    """Spellings and their ids: a Unigram model lists them with their scores, by id."""
    vocab = model["vocab"]
    return {piece: id for id, (piece, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab


def _tokens(
    path: Path, words: dict[str, int], added: dict[str, dict[str, Any]], vocab_size: int, model: str
) -> tuple[list[str], list[int]]:
    """Spellings and types by id."""
    tokens, types = [""] * vocab_size, [int(TokenType.UNUSED)] * vocab_size
    for token, id in words.items():
        if not 0 <= id < vocab_size:
            raise WeightsError(path, f"token {token!r} has the id {id}, outside the vocabulary of {vocab_size}")
        byte = model == "llama" and _BYTE.fullmatch(token)
        tokens[id], types[id] = token, int(TokenType.BYTE if byte else TokenType.NORMAL)
    for content, token in added.items():
        if 0 <= token["id"] < vocab_size:
            tokens[token["id"]] = content
            types[token["id"]] = int(TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED)
    return tokens, types


def _definition(stated: dict[str, Any], special: set[str]) -> str:
    """The tokenizer for plain text: no added token is looked for, nothing is put around, and nothing can merge into a special token."""
    model = stated["model"]
    around = {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    if isinstance(model["vocab"], list):  # ids are places: a spelling with a space, which no word has, takes a special token's
        pieces = [[f" {piece}" if piece in special else piece, score] for piece, score in model["vocab"]]
        return json.dumps(stated | around | {"model": model | {"vocab": pieces}}, ensure_ascii=False)
    if model.get("type") == "WordPiece":
        kept = {token: id for token, id in model["vocab"].items() if token not in special - {model["unk_token"]}}
        return json.dumps(stated | around | {"model": model | {"vocab": kept}}, ensure_ascii=False)
    merges = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
    kept = special - {model.get("unk_token")}
    plain = {
        "vocab": {token: id for token, id in model["vocab"].items() if token not in kept},
        "merges": [[left, right] for left, right in merges if special.isdisjoint((left, right, left + right))],
    }
    return json.dumps(stated | around | {"model": model | plain}, ensure_ascii=False)


def _special(settings: Mapping[str, Any], config: Mapping[str, Any], ids: Mapping[str, int], name: str) -> int | None:
    """The id of "bos" or "eos": by the tokenizer's settings, else by config.json."""
    token = settings.get(f"{name}_token")
    token = token.get("content") if isinstance(token, dict) else token
    if isinstance(token, str) and token in ids:
        return ids[token]
    id = config.get(f"{name}_token_id")
    id = id[0] if isinstance(id, list) and id else id
    return id if isinstance(id, int) else None


def _around(stated: dict[str, Any]) -> tuple[list[int], list[int]] | None:
    """Ids that stand before and after a text; None where the tokenizer does not say."""
    for part in _parts(stated.get("post_processor")):
        if part["type"] in ("BertProcessing", "RobertaProcessing"):
            return [part["cls"][1]], [part["sep"][1]]
        if part["type"] == "TemplateProcessing":
            sides: list[list[int]] = [[], []]
            seen = 0
            for item in part["single"]:
                if "Sequence" in item:
                    seen += 1
                else:
                    sides[seen] += part["special_tokens"][item["SpecialToken"]["id"]]["ids"]
            return sides[0], sides[1]
    return None


def _ends(folder: Path, generation: Mapping[str, Any], config: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Ids that end an answer, as generation_config.json has them, else config.json."""
    file, stated = ("generation_config.json", generation.get("eos_token_id"))
    if stated is None:
        file, stated = "config.json", config.get("eos_token_id")
    ends = stated if isinstance(stated, list) else [] if stated is None else [stated]
    for token in ends:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise WeightsError(
                folder / file, f"eos_token_id = {stated!r} is no token of the vocabulary of {vocab_size}, nor a list of such"
            )
    return tuple(ends)


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """From a file of its own, else from the tokenizer's settings: the one called "default" where there are several."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = next((one.get("template") for one in template if one.get("name") == "default"), None)
    return template if isinstance(template, str) else None
