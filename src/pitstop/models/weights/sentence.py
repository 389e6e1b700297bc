"""What a folder says of embeddings, in the files of the sentence-transformers library: modules.json and what it names. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pitstop.errors import WeightsError
from pitstop.models.embedding import Embedding
from pitstop.models.keys import Keys
from pitstop.models.weights.files import read_json, read_json_if_there, reading
from pitstop.types import Pooling

MODULES = "modules.json"

_MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_OTHERS = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_NAMED: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}


def read_embedding(folder: Path, config: Mapping[str, Any]) -> Embedding | None:
    """How the model embeds; None where the folder has no modules.json. config: of config.json.

    Raises WeightsError for a module, a way of pooling or a prompt that we do not have.
    """
    if not (folder / MODULES).is_file():
        return None
    kinds = _modules(folder)
    if list(kinds)[:2] != ["Transformer", "Pooling"] or not set(kinds) <= {"Transformer", "Pooling", "Normalize"}:
        raise WeightsError(folder / MODULES, f"asks for {', '.join(kinds)}; we have Transformer, Pooling and then perhaps Normalize")
    _refuse_prompt(folder)
    return Embedding(_pooling(folder / kinds["Pooling"] / "config.json"), "Normalize" in kinds, _dimensions(folder, config))


def longest_text(folder: Path, context: int) -> int:
    """Tokens of a text that the model was made for, special ones included: `context` or less."""
    keys = Keys(file := folder / "sentence_bert_config.json", read_json_if_there(file))
    if keys.flag("do_lower_case"):
        raise keys.refuse("do_lower_case", "is not honoured; the tokenizer's own normalizer is")
    return min(context, keys.integer("max_seq_length", context))


def _modules(folder: Path) -> dict[str, str]:
    """The modules' kinds in order, and their folders."""
    path = folder / MODULES
    with reading(path, "is no list of modules"):
        modules = read_json(path, list)
        return {str(module["type"]).rpartition(".")[2]: module["path"] for module in sorted(modules, key=lambda module: module["idx"])}


def _pooling(path: Path) -> Pooling:
    keys = Keys(path, read_json(path))
    for name in ("word_embedding_dimension", "embedding_dimension", "include_prompt"):
        keys.get(name)  # the width, which the weights say, and whether a prompt counts, which there is not
    if (named := keys.get("pooling_mode")) is not None:
        pooling = keys.choice("pooling_mode", _NAMED, "mean") if isinstance(named, str) else None
    else:
        chosen = [name for name in (*_MODES, *_OTHERS) if keys.flag(name)]
        pooling = _MODES.get(chosen[0]) if len(chosen) == 1 else None
    if pooling is None:
        raise WeightsError(path, f"asks for another pooling than one of {', '.join(_MODES)}, which is not honoured")
    keys.refuse_unread()
    return pooling


def _refuse_prompt(folder: Path) -> None:
    keys = Keys(file := folder / "config_sentence_transformers.json", read_json_if_there(file))
    if keys.get("default_prompt_name") is not None:
        raise keys.refuse("default_prompt_name", "puts words before every text, which is not honoured yet")
    if keys.get("truncate_dim") is not None:
        raise keys.refuse("truncate_dim", "is not honoured; ask for `dimensions`")


def _dimensions(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """The shorter lengths that the model was trained for, as its config.json lists them."""
    stated = config.get("matryoshka_dimensions") or []
    if not isinstance(stated, list) or not all(isinstance(length, int) and length > 0 for length in stated):
        raise WeightsError(folder / "config.json", f"matryoshka_dimensions = {stated!r} is no list of lengths")
    return tuple(sorted(stated))
