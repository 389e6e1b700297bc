"""Models whose matrices are stored in few bits give what the same values in fp32 give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from kquants import K_KINDS, decode, encode
from logits import prompt_logits
from test_bit_exact import check_matrix
from test_families import MAX_DIFFERENCE, difference, exact, prompt
from tiny_models import write_tiny_model
from to_gguf import write_gguf
from toy_gguf import add_tensor

from pitstop import LLM

EXACT_PATH = 3e-4
"""Of logits, relative to the largest, with activations of 16 bits: what the default path may change."""

MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K", "output": "Q6_K", "attn_output": "Q5_K"}
"""As the usual "_K_M" files have it: most matrices in one kind, those that matter more in a finer one."""


def write_stored(path: Path, folder: Path, main: str, *, decoded: bool = False) -> Path:
    """The folder's model with its matrices in the kind `main`, for K-quants in MIXED; decoded: the same values in F32."""

    def store(writer: GGUFWriter, name: str, values: np.ndarray) -> None:
        kind = MIXED.get(name.split(".")[-2], main) if main in K_KINDS else main
        if values.ndim == 1:
            return add_tensor(writer, name, values, "F32")
        data = encode(kind, values, seed=len(name))
        if decoded:
            return add_tensor(writer, name, decode(kind, data, values.shape), "F32")
        return writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])

    return write_gguf(path, folder, store)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "attention_bias": False}
    return write_tiny_model(tmp_path_factory.mktemp("kinds") / "llama", "llama", **changes)


@pytest.mark.parametrize("main", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K"])
def test_logits_are_those_of_the_values(tmp_path: Path, folder: Path, main: str) -> None:
    stored = write_stored(tmp_path / "stored.gguf", folder, main)
    expected = prompt_logits(exact(write_stored(tmp_path / "decoded.gguf", folder, main, decoded=True)), prompt())
    assert np.abs(expected).max() > 1
    for activations, limit in (("fp32", MAX_DIFFERENCE), ("exact", EXACT_PATH)):
        found = difference(prompt_logits(exact(stored, activations=activations), prompt()), expected)
        print(f"{main}, activations {activations}: {found:.1e} of the largest logit")
        assert found <= limit
    assert difference(prompt_logits(exact(stored, backend="ref"), prompt()), expected) <= MAX_DIFFERENCE


def test_bits_do_not_depend_on_company(tmp_path: Path, folder: Path) -> None:
    """A stack of two kinds in every block."""
    check_matrix(write_stored(tmp_path / "stored.gguf", folder, "Q4_K"), longest=200, count=8, backend="cpu")


def test_the_operator_reads_how_weights_are_stored(tmp_path: Path, folder: Path) -> None:
    notes = LLM(write_stored(tmp_path / "stored.gguf", folder, "Q4_K")).engine.notes()
    assert "weights: 1.1 million in Q4_K, 0.6 million in Q6_K, 0.2 million in Q5_K" in notes
