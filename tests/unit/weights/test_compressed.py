"""Integer weights in the compressed-tensors layout, packed here by hand: values, forms that the kernels have, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_folder
from safetensors.numpy import load_file
from toy_folder import write_toy_folder

from pitstop.errors import WeightsError
from pitstop.models.weights.compressed import Quantisation, join
from pitstop.models.weights.shards import file_entries
from pitstop.models.weights.source import open_model
from pitstop.models.weights.tensor import RawTensor

NAME = "model.layers.1.mlp.down_proj.weight"
"""[64, 96]: groups of 32, or of 48 that no kernel has."""
OURS, SHAPE = "blk.1.ffn_down.weight", (64, 96)


def config(weights: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A quantization_config as checkpoints have it."""
    scheme = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": False, "actorder": None}
    group = {"targets": ["Linear"], "weights": scheme | (weights or {}), "input_activations": None, "output_activations": None}
    common = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "global_compression_ratio": 1.5,
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.12",
    }
    return common | {"config_groups": {"group_0": group}} | changes


def packed(values: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned [rows, columns], columns a multiple of 32 / bits → int32 words, the first value in the lowest bits."""
    per_word = 32 // bits
    words = values.astype(np.uint32).reshape(len(values), -1, per_word)
    return (words << (bits * np.arange(per_word, dtype=np.uint32))).sum(axis=2, dtype=np.uint32).view(np.int32)


def write(folder: Path, parts: dict[str, np.ndarray], stated: dict[str, Any]) -> Path:
    """The toy model with `parts` ("_packed", "" …) in place of one weight."""
    write_toy_folder(folder, quantization_config=stated)
    tensors = load_file(folder / "model.safetensors")
    del tensors[NAME]
    toy_folder.write_tensors(folder, tensors | {NAME + ending: part for ending, part in parts.items()})
    return folder


def integers(bits: int, groups: int, scale_dtype: Any = np.float16, zero_points: bool = False) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A weight's parts as pack-quantized stores them, and its values."""
    rng = np.random.default_rng(bits + groups)
    values = rng.integers(0, 1 << bits, SHAPE)
    scales = rng.uniform(0.01, 0.02, (SHAPE[0], groups)).astype(scale_dtype)
    zeros = rng.integers(0, 1 << bits, scales.shape) if zero_points else np.full(scales.shape, 1 << (bits - 1))
    parts = {"_packed": packed(values, bits), "_scale": scales, "_shape": np.array(SHAPE, np.int64)}
    if zero_points:
        parts["_zero_point"] = np.ascontiguousarray(packed(np.ascontiguousarray(zeros.T), bits).T)
    expected = (values.reshape(SHAPE[0], groups, -1) - zeros[..., None]) * scales.astype(np.float32)[..., None]
    return parts, expected.astype(np.float32).reshape(SHAPE)


def read(folder: Path) -> RawTensor:
    return open_model(folder).tensor(OURS, SHAPE)


@pytest.mark.parametrize(
    ("bits", "groups", "scales", "zero_points", "kind"),
    [
        (4, 3, np.float16, False, "Q4_1"),
        (4, 3, np.float16, True, "Q4_F"),
        (4, 1, np.float16, False, "Q4_1"),
        (4, 3, np.float32, False, "Q4_F"),
        (4, 2, np.float16, True, "F32"),
        (8, 1, np.float32, False, "I8"),
        (8, 3, np.float16, False, "Q8_0"),
        (8, 3, np.float32, False, "F32"),
    ],
)
def test_values(tmp_path: Path, bits: int, groups: int, scales: Any, zero_points: bool, kind: str) -> None:
    parts, expected = integers(bits, groups, scales, zero_points)
    source = open_model(write(tmp_path / "toy", parts, config({"num_bits": bits})))
    tensor = source.tensor(OURS, SHAPE)
    assert (tensor.kind, tensor.shape) == (kind, SHAPE)
    np.testing.assert_allclose(tensor.dequantize(), expected, rtol=0, atol=1e-7 if kind == "Q4_F" else 0)
    assert f"0.0 million in INT{bits} by {'rows' if groups == 1 else 96 // groups}" in source.notes()[0]


def test_whole_zero_points_stay_in_fp16(tmp_path: Path) -> None:
    """Where the products of scales and zero points have few digits."""
    parts, _ = integers(4, 3, np.float16, True)
    parts["_scale"] = np.full_like(parts["_scale"], 2.0**-7)
    assert read(write(tmp_path / "toy", parts, config({"symmetric": False}))).kind == "Q4_1"


def test_int8_without_packing(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(-128, 128, SHAPE).astype(np.int8)
    scales = np.linspace(0.01, 0.02, 64, dtype=np.float32)[:, None]
    stated = config({"num_bits": 8, "strategy": "channel", "group_size": None}, format="int-quantized")
    stated["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
    source = open_model(write(tmp_path / "toy", {"": values, "_scale": scales}, stated))
    assert source.tensor(OURS, SHAPE).kind == "I8"
    assert np.array_equal(source.tensor(OURS, SHAPE).dequantize(), values * scales)
    assert "activations rounded to 8 bits" in source.notes()[1]
    folder = write(tmp_path / "zeros", {"": values, "_scale": scales, "_zero_point": np.ones_like(scales, np.int8)}, stated)
    with pytest.raises(WeightsError, match=r"down_proj\.weight_zero_point: zero points of 8 bits are not honoured"):
        read(folder)


@pytest.mark.parametrize("shape", [[], [1]])
def test_a_scale_for_all(tmp_path: Path, shape: list[int]) -> None:
    """In bfloat16, which numpy does not have."""
    header = {
        "a.weight": {"dtype": "I8", "shape": [2, 32], "data_offsets": [0, 64]},
        "a.weight_scale": {"dtype": "BF16", "shape": shape, "data_offsets": [64, 66]},
    }
    head = json.dumps(header).encode()
    (path := tmp_path / "a.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(range(64)) + b"\x00\x3f")
    tensor = join(file_entries(path), Quantisation(frozenset({8}), False))["a.weight"].map("a.weight")
    assert np.array_equal(tensor.dequantize(), np.arange(64, dtype=np.float32).reshape(2, 32) / 2)


def test_zero_points_for_all(tmp_path: Path) -> None:
    parts, _ = integers(4, 1)
    values = read(write(tmp_path / "plain", parts | {"_scale": np.ones(1, np.float16)}, config())).dequantize()
    for zeros in (np.array([[-5]], np.int8), np.array([[3]], np.int32)):
        more = {"_scale": np.ones(1, np.float16), "_zero_point": zeros}
        assert np.array_equal(read(write(tmp_path / "toy", parts | more, config())).dequantize(), values + 5)


GROUP = config()["config_groups"]["group_0"]


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (config(quant_method="gptq"), "quant_method = 'gptq' is not honoured; we read compressed-tensors"),
        (config(format="nvfp4-pack-quantized"), "format = 'nvfp4-pack-quantized' is not honoured"),
        (config(format=None), "format = None"),
        (config({"type": "float"}), "config_groups.group_0.weights.type = 'float'"),
        (config({"num_bits": 3}), "weights.num_bits = 3"),
        (config({"num_bits": 8, "symmetric": False}), "weights.symmetric = False is not honoured for 8 bits"),
        (config({"strategy": "block"}), "weights.strategy = 'block'"),
        (config({"block_structure": [128, 128]}), "weights.block_structure = [128, 128]"),
        (config({"actorder": "group"}), "weights.actorder = 'group' is not honoured"),
        (config({"dynamic": True}), "weights.dynamic = True"),
        (config(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme = {'num_bits': 8}"),
        (config(transform_config={"config_groups": {"u": {}}}), "transform_config ="),
        (config(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config ="),
        (config(config_groups={"W4A16": ["Linear"]}), "config_groups.W4A16 = ['Linear'] is no object"),
        (config(config_groups={}), "config_groups = {} names no group"),
        (config(config_groups={"g": GROUP | {"input_activations": {"type": "float", "num_bits": 8}}}), "input_activations.type = 'float'"),
        (
            config(config_groups={"g": GROUP | {"input_activations": {"num_bits": 8, "dynamic": False}}}),
            "input_activations.dynamic = False",
        ),
        (config(config_groups={"g": GROUP | {"output_activations": {"num_bits": 8}}}), "output_activations = {'num_bits': 8}"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_schemes_that_are_refused_by_name(tmp_path: Path, stated: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightsError) as caught:
        open_model(write(tmp_path / "toy", integers(4, 3)[0], stated))
    assert str(caught.value).startswith(f"{tmp_path / 'toy' / 'config.json'}: quantization_config.")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_scale": None}, "weight_scale: is missing"),
        ({"_shape": None}, "weight_shape: is missing"),
        ({"_g_idx": np.zeros(96, np.int32)}, "weight_g_idx: groups that are scattered over the inputs"),
        ({"_shape": np.array([64, 48], np.int64)}, "has shape [64, 12], which holds no [64, 48] of [4] bits"),
        ({"_scale": np.ones((64, 5), np.float16)}, "weight_scale: has shape [64, 5], which does not fit a weight of [64, 96]"),
        ({"_scale": np.ones((64, 0), np.float16)}, "is no sound model folder (ZeroDivisionError"),
        ({"_scale": np.ones((64, 3), np.int32)}, "weight_scale: is stored as I32"),
        ({"_packed": np.ones((64, 12), np.float32)}, "weight: is stored as F32, not as one of I8, I32, I64"),
        ({"_packed": np.array(3, np.int32)}, "weight: has shape [], which holds no [64, 96]"),
        ({"_shape": np.array(64, np.int64)}, "which holds no [64] of"),
        ({"_zero_point": np.zeros((3, 3), np.int32)}, "weight_zero_point: has shape [3, 3], which fits no scales [64, 3]"),
        ({"_zero_point": np.zeros((3, 8), np.int32)}, "weight_zero_point: has shape [3, 8], which fits no scales [64, 3]"),
        ({"_zero_point": np.zeros((3, 64), np.int8)}, "weight_zero_point: has shape [3, 64], which fits no scales [64, 3]"),
        ({"_zero_point": np.zeros((1, 3), np.int8)}, "weight_zero_point: has shape [1, 3], which fits no scales [64, 3]"),
        ({"_scales": np.ones((64, 3), np.float16)}, "weight_scales: no part of a llama decoder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parts_that_do_not_fit(tmp_path: Path, change: dict[str, np.ndarray | None], message: str) -> None:
    parts = {ending: part for ending, part in (integers(4, 3)[0] | change).items() if part is not None}
    with pytest.raises(WeightsError) as caught:
        read(write(tmp_path / "toy", parts, config()))
    assert message in str(caught.value)


def test_integers_without_a_config_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "toy", integers(4, 3)[0], config())
    (folder / "config.json").write_text(json.dumps(toy_folder.CONFIG))
    with pytest.raises(WeightsError, match=r"down_proj\.weight_(packed|scale|shape): no part of a llama decoder"):
        open_model(folder)
