"""Folders in fewer bits: read back by us and by the compressed-tensors library, from every family, from folders and from GGUF files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from safetensors.torch import load_file
from tiny_grok import write_grok2
from tiny_models import FAMILIES, write_tiny_model
from to_gguf import KEYS, write_gguf
from toy_gguf import write_toy_gguf

from pitstop.errors import ConfigError, Unsupported, WeightsError
from pitstop.models.weights.source import ModelSource, open_model
from pitstop.precision import folder as writing
from pitstop.precision.config_json import config_json
from pitstop.precision.decoder import fp32
from pitstop.precision.folder import FolderWriter, check_room, explained, stored_dtype
from pitstop.precision.grid import Rounded, nearest
from pitstop.precision.scheme import WHOLE_OUTPUT, schemes

SIZES = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
"""Groups of 128 in some matrices, of 64 in others."""
NOT_IN_GGUF: dict[str, dict] = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": {"query_pre_attn_scalar": 16},
    "llama": {"attention_bias": False},
    "mixtral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"use_sliding_window": False},
    "qwen3_moe": {"mlp_only_layers": []},
}
"""What GGUF files do not state, at what our reader takes it for."""
OPTIONS = {
    "INT8": {"bits": 8},
    "INT8 by output": {"bits": 8, "group": WHOLE_OUTPUT},
    "INT4": {"bits": 4},
    "INT4 by 32": {"bits": 4, "group": 32},
    "INT4 by output": {"bits": 4, "group": WHOLE_OUTPUT},
    "INT4, zeros": {"bits": 4, "symmetric": False},
}
KINDS = {"INT8": "Q8_0", "INT8 by output": "I8"}
"""What the kernels have for them, else Q4_1."""


def slow_but(families: Iterable[str], *quick: str) -> list[Any]:
    return [family if family in quick else pytest.param(family, marks=pytest.mark.slow) for family in families]


def write(model: Path, out: Path, options: dict, shard: int = 1 << 30) -> tuple[ModelSource, dict[str, Rounded]]:
    """The folder `out`, and what each matrix was rounded to."""
    source = open_model(model)
    plan = schemes(source.config, **options)
    rounded = {name: nearest(fp32(source, name), scheme, stored_dtype(source)) for name, scheme in plan.items()}
    writer = FolderWriter(source, plan, out, shard)
    for name, one in rounded.items():
        writer.add(name, one)
    writer.add_whole()
    writer.finish()
    return source, rounded


def theirs(name: str, source: ModelSource) -> np.ndarray:
    return source.tensor(name, source.config.tensors()[name]).dequantize()


def assert_holds(out: Path, source: ModelSource, rounded: dict[str, Rounded], tolerance: float = 0.0) -> None:
    """The folder has the rounded values exactly, and all else as the source has it."""
    found = open_model(out)
    assert found.config == source.config
    for name in source.config.tensors():
        if name in rounded:
            assert np.array_equal(theirs(name, found), rounded[name].values().numpy()), name
        else:
            np.testing.assert_allclose(theirs(name, found), theirs(name, source), rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ("INT8", torch.bfloat16),
        ("INT8 by output", torch.float32),
        ("INT4", torch.float16),
        ("INT4 by output", torch.float16),
        ("INT4 by 32", torch.float32),
        ("INT4, zeros", torch.float16),
        ("INT4, zeros", torch.bfloat16),
    ],
)
def test_values_come_back(tmp_path: Path, options: str, dtype: torch.dtype) -> None:
    model = write_tiny_model(tmp_path / "tiny", "llama", dtype=dtype, **SIZES)
    source, rounded = write(model, tmp_path / "out", OPTIONS[options])
    assert_holds(tmp_path / "out", source, rounded)
    found = open_model(tmp_path / "out")
    kinds = {found.tensor(name, source.config.tensors()[name]).kind for name in rounded}
    assert kinds == {KINDS.get(options, "Q4_1")}, "the kernels would not take it as it is"


@pytest.mark.parametrize("options", OPTIONS)
def test_the_compressed_tensors_library_reads_the_same_values(tmp_path: Path, options: str) -> None:
    """Its own code, from the config that we wrote, in fp32."""
    model = write_tiny_model(tmp_path / "tiny", "llama", **SIZES)
    source, rounded = write(model, tmp_path / "out", OPTIONS[options])
    stated = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(stated)
    held = load_file(tmp_path / "out" / "model.safetensors")
    assert sum(name.endswith("_packed") for name in held) == len(rounded) == 7 * 3
    for name, one in rounded.items():
        module = writing._family(source).hugging_face(name).removesuffix(".weight")
        parts = {key.rpartition(".")[2]: value for key, value in held.items() if key.startswith(f"{module}.weight")}
        scheme = _scheme_of(module, config)
        values = PackedQuantizationCompressor.decompress(parts, scheme)["weight"]
        assert torch.equal(values.float(), one.values()), name


def _scheme_of(module: str, config: QuantizationConfig) -> QuantizationScheme:
    """The group that the library finds for a linear module of that name."""
    from compressed_tensors.utils import match_name

    found = [
        group
        for group in config.config_groups.values()
        if any(target == "Linear" or match_name(module, target) for target in group.targets)
    ]
    assert len(found) == 1, f"{module} is in {len(found)} groups"
    return found[0]


@pytest.mark.parametrize("options", ["INT8", pytest.param("INT8 by output", marks=pytest.mark.slow), "INT4"])
def test_transformers_computes_the_same(tmp_path: Path, options: str) -> None:
    """INT4 with zero points it cannot load (5.24), not even as the compressed-tensors library writes it."""
    from logits import prompt_logits
    from transformers import AutoModelForCausalLM

    from pitstop import LLM

    model = write_tiny_model(tmp_path / "tiny", "llama", **SIZES)
    write(model, tmp_path / "out", OPTIONS[options])
    tokens = [(7 * i * i + 3 * i) % 256 for i in range(150)]
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)(torch.tensor([tokens])).logits[0].numpy()
    llm = LLM(tmp_path / "out", activations="fp32", codec="raw32", memory=32 << 20)
    assert np.abs(prompt_logits(llm, tokens) - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("family", slow_but(FAMILIES, "qwen2_moe", "gemma3_text"))
def test_every_family_is_written(tmp_path: Path, family: str) -> None:
    """Experts, tied heads, biases, norms that are stored less one."""
    model = write_tiny_model(tmp_path / "tiny", family)
    source, rounded = write(model, tmp_path / "out", {"bits": 4, "group": 32} if "moe" not in family else {"bits": 8})
    assert_holds(tmp_path / "out", source, rounded, tolerance=1e-6)


@pytest.mark.parametrize("family", slow_but(KEYS, "llama", "gemma2"))
def test_gguf_files_are_written_as_folders(tmp_path: Path, family: str) -> None:
    """The folder's config is that of the model's own folder, with q and k in its order."""
    model = write_tiny_model(tmp_path / "tiny", family, **NOT_IN_GGUF.get(family, {}))
    gguf = write_gguf(tmp_path / "model.gguf", model)
    source, rounded = write(gguf, tmp_path / "out", {"bits": 8})
    found, own = open_model(tmp_path / "out"), open_model(model)
    assert found.config == replace(source.config, rope_interleaved=False)
    for name in source.config.tensors():
        expected = theirs(name, own)
        allowed = np.abs(expected).max() / 100 if name in rounded else 1e-6
        assert np.abs(theirs(name, found) - expected).max() <= allowed, name
    assert found.vocabulary().chat_template == source.vocabulary().chat_template


def test_shards_and_their_index(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", "llama", **SIZES)
    source, rounded = write(model, tmp_path / "out", {"bits": 4}, shard=100_000)
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 2
    assert not list((tmp_path / "out").glob("part-*"))
    assert_holds(tmp_path / "out", source, rounded)


def test_a_config_that_cannot_be_stated_is_refused(tmp_path: Path) -> None:
    source = open_model(write_toy_gguf(tmp_path / "toy.gguf"))
    with pytest.raises(Unsupported, match=r"toy\.gguf: this llama cannot be written as a folder"):
        config_json(replace(source.config, attention_scale=0.5), source.path)


def test_groks_are_refused_by_name(tmp_path: Path) -> None:
    source = open_model(write_grok2(tmp_path / "grok"))
    with pytest.raises(WeightsError, match="is not written as a folder here"):
        FolderWriter(source, {}, tmp_path / "out")


def test_a_full_disk_is_said_before_and_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_model(write_tiny_model(tmp_path / "tiny", "llama", **SIZES))
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(ConfigError, match=r"OUT .*out: \d+ MiB are needed there, 0 MiB are free"):
        check_room(source, {}, tmp_path / "deep" / "out")
    for error in (OSError(28, "No space left on device"), ValueError("I/O error: No space left on device (os error 28)")):
        with pytest.raises(ConfigError, match="the disk is full"), explained(tmp_path / "out"):
            raise error
    with pytest.raises(ValueError, match="another"), explained(tmp_path / "out"):
        raise ValueError("another")
