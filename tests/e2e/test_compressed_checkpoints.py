"""Checkpoints of the compressed-tensors library: our logits against those of the weights that the library makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from logits import prompt_logits
from servers import model_server
from test_families import MAX_DIFFERENCE, difference, exact, prompt
from test_stored_kinds import EXACT_PATH
from tiny_compressed import ROUNDED, write_compressed
from transformers import AutoModelForCausalLM

from pitstop.pool.texts import read_model

GROUPED = {"num_bits": 4, "strategy": "group"}
SCHEMES = {
    "INT4 by 32": (GROUPED | {"group_size": 32}, "INT4 by 32", torch.float16),
    "INT4 by 64, zero points": (GROUPED | {"group_size": 64, "symmetric": False}, "INT4 by 64", torch.float16),
    "INT4 by 128, bf16": (GROUPED | {"group_size": 128}, "INT4 by 128", torch.bfloat16),
    "INT4 by 128, zero points, bf16": (GROUPED | {"group_size": 128, "symmetric": False}, "INT4 by 128", torch.bfloat16),
    "INT4 by rows": ({"num_bits": 4, "strategy": "channel"}, "INT4 by rows", torch.float16),
    "INT4 by rows, fp32": ({"num_bits": 4, "strategy": "channel"}, "INT4 by rows", torch.float32),
    "INT4 by 16": (GROUPED | {"group_size": 16}, "INT4 by 16", torch.float16),
    "INT8 by rows": ({"num_bits": 8, "strategy": "channel"}, "INT8 by rows", torch.bfloat16),
    "INT8 by 128": ({"num_bits": 8, "strategy": "group", "group_size": 128}, "INT8 by 128", torch.float16),
    "W4A16 by its order of calibration": (GROUPED | {"group_size": 128, "actorder": "weight"}, "INT4 by 128", torch.float16),
}
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}


@torch.inference_mode()
def reference(folder: Path, plain: Path, tokens: list[int]) -> torch.Tensor:
    """Logits in fp32 of the plain model with the weights as (value - zero point) · scale in fp32, from the library's own unpacking."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from safetensors.torch import load_file

    stored = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager").eval()
    bits = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"]
    for name, module in model.named_modules():
        scale = stored.get(f"{name}.weight_scale")
        if scale is None:
            continue
        shape, zero = module.weight.shape, stored.get(f"{name}.weight_zero_point")
        packed = stored.get(f"{name}.weight_packed")
        values = stored[f"{name}.weight"] if packed is None else unpack_from_int32(packed, bits, shape)
        if zero is not None:
            zero = unpack_from_int32(zero, bits, (shape[0], scale.shape[1]), packed_dim=0)
        grouped = values.float().unflatten(1, (scale.shape[1], -1))
        module.weight.copy_(((grouped - (0 if zero is None else zero.float()[..., None])) * scale.float()[..., None]).flatten(1))
    return model(torch.tensor([tokens])).logits[0].numpy()


@pytest.mark.parametrize("name", SCHEMES)
def test_logits_are_those_of_the_values(tmp_path: Path, name: str) -> None:
    scheme, note, dtype = SCHEMES[name]
    folder = write_compressed(tmp_path / "tiny", scheme, dtype, **SIZES)
    expected = reference(folder, tmp_path / "tiny-plain", prompt())
    for activations, limit in (("fp32", MAX_DIFFERENCE), ("exact", EXACT_PATH)):
        llm = exact(folder, activations=activations)
        assert difference(prompt_logits(llm, prompt()), expected) <= limit
        assert any(f"million in {note}" in line for line in llm.engine.notes())
    assert difference(prompt_logits(exact(folder, backend="ref"), prompt()), expected) <= MAX_DIFFERENCE


def test_activations_stay_exact_and_the_operator_reads_so(tmp_path: Path) -> None:
    """W8A8: integers without packing, and a wish to round activations."""
    folder = write_compressed(tmp_path / "tiny", {"num_bits": 8, "strategy": "channel"}, torch.bfloat16, ROUNDED, **SIZES)
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["format"] == "int-quantized"
    llm = exact(folder, activations="fp32")
    assert difference(prompt_logits(llm, prompt()), reference(folder, tmp_path / "tiny-plain", prompt())) <= MAX_DIFFERENCE
    assert any("asks for activations rounded to 8 bits" in line for line in llm.engine.notes())


def test_the_front_reads_one(tmp_path: Path) -> None:
    """Without torch, as the server's front does: its words, and its size in fp32 beside that in 4 bits."""
    opened = read_model(str(write_compressed(tmp_path / "tiny", SCHEMES["INT4 by 128, bf16"][0], torch.bfloat16, **SIZES)))
    assert opened.texts.tokenizer.decode(opened.texts.tokenizer.encode("Hello")) == "Hello"
    assert 0 < opened.stored < opened.wide / 2


@pytest.mark.slow
def test_one_is_served(tmp_path: Path) -> None:
    folder = write_compressed(tmp_path / "tiny", SCHEMES["INT4 by 128, bf16"][0], torch.bfloat16, **SIZES)
    with model_server(folder) as server:
        assert server.chat("Hello").json()["usage"]["completion_tokens"] > 0
