"""Tokenizers for the tests of this room."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from toys import toy_vocabulary

from pitstop.text.tokenizer import Tokenizer
from pitstop.text.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def toy() -> Tokenizer:
    return Tokenizer(toy_vocabulary())


@pytest.fixture(scope="session")
def default_vocabulary(model_path: Path) -> Vocabulary:
    """The default model's, read without the weights room, which is not this room's to test."""
    fields = gguf.GGUFReader(model_path).fields

    def read(name: str) -> object:
        return fields[name].contents()

    return Vocabulary(
        model=read("tokenizer.ggml.model"),
        pre=read("tokenizer.ggml.pre"),
        tokens=read("tokenizer.ggml.tokens"),
        types=read("tokenizer.ggml.token_type"),
        merges=read("tokenizer.ggml.merges"),
        bos=read("tokenizer.ggml.bos_token_id"),
        eos=read("tokenizer.ggml.eos_token_id"),
        add_bos=read("tokenizer.ggml.add_bos_token"),
        chat_template=read("tokenizer.chat_template"),
    )


@pytest.fixture(scope="session")
def default_tokenizer(default_vocabulary: Vocabulary) -> Tokenizer:
    return Tokenizer(default_vocabulary)
