"""What a model is read from: a GGUF file, a Hugging Face folder, or Grok-1 as published. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from pitstop.models.config import ModelConfig
from pitstop.models.embedding import Embedding
from pitstop.models.encoder_config import EncoderConfig
from pitstop.models.weights.folder import open_folder
from pitstop.models.weights.gguf import open_gguf
from pitstop.models.weights.grok1 import is_grok1, open_grok1
from pitstop.models.weights.tensor import RawTensor
from pitstop.text.vocabulary import Vocabulary


class ModelSource(Protocol):
    """An opened model. Tensors go by GGUF's names, and hold what the decoder multiplies by."""

    path: Path
    config: ModelConfig | EncoderConfig

    def tensor(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        """The tensor `name`, which must have row-major `shape`.

        Raises WeightsError when it is missing, has another shape, or is stored in a way that we do not read.
        """
        ...

    def vocabulary(self) -> Vocabulary:
        """The tokenizer's data. Raises WeightsError when a part is missing or inconsistent."""
        ...

    def embedding(self) -> Embedding | None:
        """How the model's files say that it embeds; None where they do not. Raises WeightsError for what we do not honour."""
        ...

    def notes(self) -> list[str]:
        """Lines for the operator: how the weights are stored."""
        ...


def open_model(path: str | os.PathLike[str]) -> ModelSource:
    """The model in a GGUF file, in a folder as Hugging Face's libraries write it, or in Grok-1's; every key of it is honoured.

    Raises WeightsError, one line naming the file and, where there is one, the tensor.
    """
    path = Path(path)
    if not path.is_dir():
        return open_gguf(path)
    return open_grok1(path) if is_grok1(path) else open_folder(path)
