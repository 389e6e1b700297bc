"""The names of a model folder's files, and reading the small ones. Imports nothing that takes time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pitstop.errors import WeightsError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
"""Of the weights: what names the shards, or the only one."""

CHECKPOINT = "ckpt-0"
"""Where Grok-1's leaves lie."""

TOKENIZER_JSON, TOK_JSON, TOKENIZER_MODEL = "tokenizer.json", "tokenizer.tok.json", "tokenizer.model"
TOKENIZERS = (TOKENIZER_JSON, TOK_JSON, TOKENIZER_MODEL)
"""The tokenizers library's, Grok-2's, SentencePiece's (Grok-1's is one): of these the first one that is there is read."""

TENSOR_PARALLEL = re.compile(r".+-TP-(\d{3}|common)\.safetensors")
"""Files of a folder made for tensor parallelism, and the rank of each."""


@contextmanager
def reading(path: Path, otherwise: str) -> Iterator[None]:
    """Around the reading of a file or folder: whatever fails there because it holds something unexpected becomes a WeightsError.

    otherwise: what the error says of `path`.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise WeightsError(path, f"{otherwise} ({type(error).__name__}: {error})") from error


def read_json(path: Path, kind: type = dict) -> Any:
    """The object, or list, in the file at `path`. Raises WeightsError when it is missing, cannot be read, or is something else."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise WeightsError(path, f"cannot be read: {error.strerror}; fetch the folder again") from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(path, f"is not JSON ({error}); fetch the folder again") from error
    if not isinstance(value, kind):
        raise WeightsError(path, f"is no JSON {'object' if kind is dict else 'list'}")
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """The same, or nothing where there is no such file."""
    return read_json(path) if path.exists() else {}
