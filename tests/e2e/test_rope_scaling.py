"""Every scaling of RoPE against transformers: frequencies, and logits of a tiny model beyond the length that it was trained for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logits import prompt_logits
from test_families import MAX_DIFFERENCE, difference, reference_logits
from tiny_models import write_tiny_model

from pitstop import LLM
from pitstop.errors import ConfigError
from pitstop.models.keys import Keys
from pitstop.models.rope_keys import read_rope

DIM, ORIGINAL, LENGTH = 16, 128, 400
THETA = 1e4
DIVISORS = [1.0 + 0.25 * pair for pair in range(DIM // 2)]
LONG = [1.5 + pair**1.5 for pair in range(DIM // 2)]
SCALINGS: dict[str, tuple[dict[str, Any], int]] = {
    "default": ({"rope_type": "default"}, 512),
    "linear": ({"rope_type": "linear", "factor": 4.0}, ORIGINAL),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, ORIGINAL),
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}, ORIGINAL),
    "yarn, all options": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
            "beta_fast": 8.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
            "truncate": False,
        },
        512,
    ),
    "yarn, attention_factor": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL, "attention_factor": 1.4},
        512,
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
        },
        1024,
    ),
    "longrope": (
        {"rope_type": "longrope", "short_factor": DIVISORS, "long_factor": LONG, "original_max_position_embeddings": ORIGINAL},
        512,
    ),
    "longrope, attention_factor": (
        {
            "rope_type": "longrope",
            "short_factor": DIVISORS,
            "long_factor": LONG,
            "original_max_position_embeddings": ORIGINAL,
            "attention_factor": 1.2,
        },
        512,
    ),
}
"""Parameters, and the config's max_position_embeddings."""


@pytest.mark.parametrize("context", [100, LENGTH])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies(name: str, context: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters, positions = SCALINGS[name]
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=positions, rope_parameters=dict(parameters))
    if compute := ROPE_INIT_FUNCTIONS.get(parameters["rope_type"]):
        expected, factor = compute(config, "cpu", seq_len=context)
    else:
        expected, factor = LlamaRotaryEmbedding(config).inv_freq, 1.0
    keys = Keys(Path("config.json"), {"max_position_embeddings": positions, "rope_parameters": parameters})
    rotation = read_rope(keys, DIM, THETA).rotation(DIM, context)
    assert rotation.factor == pytest.approx(factor, rel=1e-7)
    assert np.abs(rotation.frequencies / expected.double().numpy() - 1).max() < 4e-7  # theirs is computed in fp32


def prompt() -> list[int]:
    return torch.randint(3, 259, (LENGTH,), generator=torch.Generator().manual_seed(3)).tolist()


def old_spelling(folder: Path) -> Path:
    """config.json as it was before transformers 5: rope_scaling with a type, and rope_theta beside it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = {"type": parameters.pop("rope_type")} | parameters
    path.write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("spelling", ["new", "old"])
@pytest.mark.parametrize("name", SCALINGS)
def test_logits_past_the_original_length(tmp_path: Path, name: str, spelling: str) -> None:
    parameters, positions = SCALINGS[name]
    folder = write_tiny_model(tmp_path / "tiny", "llama", max_position_embeddings=positions, rope_parameters=dict(parameters))
    expected = reference_logits(folder, prompt())
    if spelling == "old":
        old_spelling(folder)
    ours = prompt_logits(LLM(folder, codec="raw32", context=LENGTH), prompt())
    found = difference(ours, expected)
    print(f"{name}: max difference of logits {found:.1e} of the largest")
    assert found <= MAX_DIFFERENCE


@pytest.mark.parametrize("name", [name for name in SCALINGS if name != "default"])
def test_the_scaling_shows(tmp_path: Path, name: str) -> None:
    """What a reader that dropped it would get is far away."""
    parameters, positions = SCALINGS[name]
    folder = write_tiny_model(tmp_path / "tiny", "llama", max_position_embeddings=positions, rope_parameters=dict(parameters))
    expected = reference_logits(folder, prompt())
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_parameters": None, "max_position_embeddings": 512}))
    assert difference(prompt_logits(LLM(folder, codec="raw32"), prompt()), expected) > 100 * MAX_DIFFERENCE


def test_short_contexts_use_the_unscaled_and_the_short(tmp_path: Path) -> None:
    for name in ("dynamic", "longrope"):
        parameters, positions = SCALINGS[name]
        changes = {"max_position_embeddings": positions, "rope_parameters": dict(parameters)}
        folder = write_tiny_model(tmp_path / name, "llama", **changes)
        short = prompt()[:ORIGINAL]
        assert (
            difference(prompt_logits(LLM(folder, codec="raw32", context=ORIGINAL), short), reference_logits(folder, short))
            <= MAX_DIFFERENCE
        )


@pytest.mark.parametrize(("name", "words"), [("dynamic", "dynamic NTK scaling is fixed"), ("longrope", "fixed to its long factors")])
def test_the_operator_is_told(tmp_path: Path, name: str, words: str) -> None:
    parameters, positions = SCALINGS[name]
    folder = write_tiny_model(tmp_path / "tiny", "llama", max_position_embeddings=positions, rope_parameters=dict(parameters))
    llm = LLM(folder)
    assert llm.engine.context == 512
    assert any(words in note and "512 tokens" in note for note in llm.engine.notes())


def test_contexts_beyond_the_stretched_are_refused(tmp_path: Path) -> None:
    parameters, positions = SCALINGS["yarn"]
    folder = write_tiny_model(tmp_path / "tiny", "llama", max_position_embeddings=positions, rope_parameters=dict(parameters))
    with pytest.raises(ConfigError, match="this model's context is 512 tokens"):
        LLM(folder, context=513)


def test_gemma_scales_its_global_layers_only(tmp_path: Path) -> None:
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    folder = write_tiny_model(tmp_path / "tiny", "gemma3_text", max_position_embeddings=512, rope_parameters=parameters)
    expected = reference_logits(folder, prompt())
    llm = LLM(folder, codec="raw32")
    assert llm.engine.context == 512  # the length that the scaling reaches, as these checkpoints state it
    assert difference(prompt_logits(llm, prompt()), expected) <= MAX_DIFFERENCE
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    path.write_text(json.dumps(config | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 1e4}))
    assert difference(prompt_logits(LLM(folder, codec="raw32"), prompt()), expected) <= MAX_DIFFERENCE
