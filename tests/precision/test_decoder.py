"""The network that training and calibration run against the one that serves, of every dense family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from logits import prompt_logits
from tiny_models import write_tiny_model
from to_gguf import write_gguf

from pitstop import LLM
from pitstop.errors import Unsupported
from pitstop.models.weights.source import open_model
from pitstop.precision.calibrate import calibrated
from pitstop.precision.decoder import DenseDecoder, load_decoder
from pitstop.precision.grid import nearest
from pitstop.precision.scheme import schemes

TOKENS = [(7 * i * i + 3 * i) % 256 for i in range(150)]


@torch.inference_mode()
def logits(decoder: DenseDecoder) -> np.ndarray:
    return decoder(torch.tensor([TOKENS]))[0].numpy()


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(
    "family", ["llama", "gemma3_text", *(pytest.param(one, marks=pytest.mark.slow) for one in ("mistral", "qwen2", "qwen3", "gemma2"))]
)
def test_logits_are_the_served_ones(tmp_path: Path, family: str) -> None:
    folder = write_tiny_model(tmp_path / "tiny", family)
    served = prompt_logits(LLM(folder, activations="fp32", codec="raw32", memory=32 << 20), TOKENS)
    assert difference(logits(load_decoder(open_model(folder))), served) <= 2e-5


def test_pairs_that_lie_side_by_side(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "model.gguf", write_tiny_model(tmp_path / "tiny", "llama", attention_bias=False))
    served = prompt_logits(LLM(gguf, activations="fp32", codec="raw32", memory=32 << 20), TOKENS)
    assert difference(logits(load_decoder(open_model(gguf))), served) <= 2e-5


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"norm_eps": 1e-2}),
        ("mistral", {"windows": ()}),
        ("qwen3", {"qk_norm": False}),
        ("gemma2", {"attention_softcap": 0.0}),
        ("gemma2", {"norms_around": False}),
        ("gemma3_text", {"local_rope": None}),
    ],
)
def test_a_planted_fault_is_seen(tmp_path: Path, family: str, changes: dict) -> None:
    """The comparison above would fail."""
    source = open_model(write_tiny_model(tmp_path / "tiny", family))
    whole = logits(load_decoder(source))
    source.config = replace(source.config, **changes)
    assert difference(logits(load_decoder(source)), whole) > 1e-3


@pytest.mark.parametrize("family", ["mixtral"])
def test_mixtures_are_refused_by_name(tmp_path: Path, family: str) -> None:
    source = open_model(write_tiny_model(tmp_path / "tiny", family))
    with pytest.raises(Unsupported, match=rf"--qat: {family} is a mixture of experts"):
        load_decoder(source)
    with pytest.raises(Unsupported, match=rf"--calibrate: {family} is a mixture of experts"):
        next(calibrated(source, {}, torch.float16, [TOKENS]))


@pytest.mark.parametrize("family", ["llama", pytest.param("gemma2", marks=pytest.mark.slow)])
def test_calibration_rounds_better_for_its_text(tmp_path: Path, family: str) -> None:
    """Logits of that text, with each way of rounding put into the network."""
    source = open_model(write_tiny_model(tmp_path / "tiny", family))
    plan, whole = schemes(source.config, 4, 32), logits(load_decoder(source))
    distances = []
    for values in (
        {name: one.values() for name, one, _ in calibrated(source, plan, torch.float16, [TOKENS] * 3)},
        {name: nearest(load_decoder(source).state_dict()[name], scheme, torch.float16).values() for name, scheme in plan.items()},
    ):
        assert values.keys() == plan.keys()
        decoder = load_decoder(source)
        decoder.load_state_dict(values, strict=False)
        distances.append(float(np.square(logits(decoder) - whole).mean()))
    assert distances[0] < 0.6 * distances[1]
