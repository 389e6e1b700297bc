"""LoRA adapters as files: what is honoured, and what is refused by name. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_adapters import write_adapter
from safetensors.numpy import load_file, save_file
from toy_folder import write_toy_folder
from toy_gguf import write_toy_gguf

from pitstop.errors import InvalidRequest
from pitstop.models.lora.file import CONFIG, PICKLE, WEIGHTS, AdapterFile, read_adapter
from pitstop.models.weights.source import open_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    return open_model(write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf")).config


@pytest.fixture
def adapter(tmp_path: Path, model) -> Path:
    return write_adapter(tmp_path / "adapter", model, 1)


def state(folder: Path, **changes: Any) -> None:
    """Change keys of adapter_config.json; None removes one."""
    keys = json.loads((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps(keys))


def change(folder: Path, how: Callable[[dict[str, np.ndarray]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    how(tensors)
    save_file(tensors, folder / WEIGHTS)


def refusal(folder: Path, model, field: str = "path") -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_adapter("a", folder, model)
    assert caught.value.field == field
    return str(caught.value)


A0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B1 = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"


def test_what_peft_writes_is_read(adapter: Path, model) -> None:
    state(
        adapter, base_model_name_or_path="org/base", inference_mode=True, init_lora_weights=True, modules_to_save=None, rank_pattern={},
        alpha_pattern={}, layers_to_transform=None, megatron_core="megatron.core", loftq_config={}, use_dora=False, use_rslora=True,
        fan_in_fan_out=False, peft_version="0.18.0", runtime_config={"ephemeral_gpu_offload": False}, lora_bias=False,
    )  # fmt: skip
    read = read_adapter("mine", adapter, model)
    assert (read.name, read.rank, read.base, read.path) == ("mine", 4, "org/base", str(adapter))
    assert read.size == sum(tensor.nbytes for tensor in load_file(adapter / WEIGHTS).values())
    assert AdapterFile(adapter, model).scale == 8 / 2
    assert read.id == f"mine@{read.digest}"
    assert len(read.digest) == 16


def test_a_folder_and_a_gguf_file_have_the_same_places(adapter: Path, tmp_path: Path) -> None:
    config = open_model(write_toy_folder(tmp_path / "folder")).config
    assert read_adapter("a", adapter, config).size


def test_every_byte_is_in_the_digest(adapter: Path, model) -> None:
    digests = {read_adapter("a", adapter, model).digest}
    change(adapter, lambda tensors: tensors[B1].__setitem__((3, 1), 7))
    digests.add(read_adapter("a", adapter, model).digest)
    state(adapter, lora_alpha=9)
    digests.add(read_adapter("a", adapter, model).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peft_type", "LOHA"),
        ("task_type", "SEQ_CLS"),
        ("r", 0),
        ("r", "8"),
        ("lora_alpha", float("nan")),
        ("bias", "lora_only"),
        ("use_dora", True),
        ("use_rslora", 1),
        ("modules_to_save", ["lm_head"]),
        ("rank_pattern", {"q_proj": 2}),
        ("alpha_pattern", {"q_proj": 2}),
        ("init_lora_weights", "pissa"),
        ("layer_replication", [[0, 2]]),
        ("lora_bias", True),
        ("alora_invocation_tokens", [1]),
        ("target_modules", ["q_proj", "lm_head"]),
        ("target_modules", 3),
        ("trainable_token_indices", [1, 2]),
        ("something_new", 1),
    ],
)
def test_a_key_that_is_not_honoured_is_refused_by_name(adapter: Path, model, key: str, value: object) -> None:
    state(adapter, **{key: value})
    assert key in refusal(adapter, model)


def test_missing_keys_and_files(adapter: Path, model, tmp_path: Path) -> None:
    state(adapter, r=None)
    assert "r is missing" in refusal(adapter, model)
    (adapter / CONFIG).write_text("{")
    assert "not JSON" in refusal(adapter, model)
    (adapter / CONFIG).unlink()
    assert CONFIG in refusal(adapter, model)
    (adapter / WEIGHTS).rename(adapter / PICKLE)
    assert "pickle" in refusal(adapter, model)
    (adapter / PICKLE).unlink()
    assert WEIGHTS in refusal(adapter, model)
    assert "is no folder" in refusal(tmp_path / "nowhere", model)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda t: t.update({A0: t[A0][:3]}), r"lora_A.weight: has shape \[3, 64\], expected \[4, 64\]"),
        (lambda t: t.update({B1: t[B1][:5]}), r"down_proj.lora_B.weight: has shape \[5, 4\], expected \[64, 4\]"),
        (lambda t: t.pop(A0), "stands without its lora_A"),
        (lambda t: t.update({A0: t[A0].astype(np.int32)}), "is stored as I32"),
        (lambda t: t[A0].__setitem__((0, 0), np.inf), "infinity or NaN"),
        (lambda t: t.update({A0.replace("layers.0", "layers.7"): t[A0]}), "layers.7.*no place"),
        (lambda t: t.update({"base_model.model.lm_head.lora_A.weight": t[A0]}), "lm_head.*no place"),
        (lambda t: t.update({"base_model.model.model.embed_tokens.lora_embedding_A": t[A0]}), "embed_tokens.*is no LoRA matrix"),
        (lambda t: t.update({A0.replace("lora_A.weight", "lora_magnitude_vector"): t[A0]}), "magnitude_vector.*is no LoRA matrix"),
        (lambda t: t.update({A0.replace("lora_A.weight", "lora_B.bias"): t[A0]}), r"lora_B\.bias.*is no LoRA matrix"),
        (lambda t: t.clear(), "holds no matrices"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(adapter: Path, model, how: Callable, message: str) -> None:
    change(adapter, how)
    assert re.search(message, refusal(adapter, model))


def test_a_truncated_file_is_refused(adapter: Path, model) -> None:
    data = (adapter / WEIGHTS).read_bytes()
    (adapter / WEIGHTS).write_bytes(data[:-10])
    assert "truncated" in refusal(adapter, model)


def test_the_adapter_of_another_model_is_refused(adapter: Path, tmp_path: Path) -> None:
    other = open_model(write_toy_gguf(tmp_path / "other.gguf", head_dim=32)).config
    assert "another model" in refusal(adapter, other)


@pytest.mark.parametrize("name", ["", "a b", "x@y", "-x", "n" * 129, "é"])
def test_names(adapter: Path, model, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_adapter(name, adapter, model)
    assert caught.value.field == "name"
