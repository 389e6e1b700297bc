"""Seeded LoRA adapters as PEFT saves them, for any model that we run, and models with one merged in.

`python tests/lora_adapters.py MODEL FOLDER NAME…` writes one adapter for each NAME, a folder under FOLDER.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from pitstop.models.config import ModelConfig
from pitstop.models.families import by_model_type
from pitstop.models.lora.file import CONFIG, PARTS, WEIGHTS
from pitstop.models.weights.source import open_model

STRENGTH = 0.5
"""Of an update, in units of what it is added to: other tokens come soon."""


def write_adapter(
    folder: Path,
    model: ModelConfig,
    seed: int,
    *,
    rank: int = 4,
    alpha: float = 8,
    parts: Sequence[str] = PARTS,
    dtype: type = np.float32,
    strength: float = STRENGTH,
    **changes: Any,
) -> Path:
    """Write the adapter to `folder` and return it. `parts` have an update in every layer; `changes` are keys of adapter_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, tensors, shapes = np.random.default_rng(seed), {}, model.tensors()
    family = by_model_type(model.architecture)
    stated = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "bias": "none", "lora_dropout": 0.1} | changes
    scale = scale_of(stated)
    modules = set()
    for layer in range(model.layers):
        for part in parts:
            name = f"blk.{layer}.{part}.weight"
            if name not in shapes:  # a layer of experts
                continue
            out, width = shapes[name]
            theirs = family.hugging_face(name).removesuffix(".weight")
            modules.add(theirs.rpartition(".")[2])
            down = rng.standard_normal((rank, width)) * width**-0.5
            up = rng.standard_normal((out, rank)) * strength * rank**-0.5 / scale
            tensors[f"base_model.model.{theirs}.lora_A.weight"] = down.astype(dtype)
            tensors[f"base_model.model.{theirs}.lora_B.weight"] = up.astype(dtype)
    save_file(tensors, folder / WEIGHTS)
    stated.setdefault("target_modules", sorted(modules))
    (folder / CONFIG).write_text(json.dumps(stated))
    return folder


def scale_of(stated: dict[str, Any]) -> float:
    return stated["lora_alpha"] / (stated["r"] ** 0.5 if stated.get("use_rslora") else stated["r"])


def merge(model: Path, adapter: Path, folder: Path) -> Path:
    """A Hugging Face folder like `model`, with the adapter in its weights, at `folder`."""
    shutil.copytree(model, folder)
    scale = scale_of(json.loads((adapter / CONFIG).read_text()))
    updates = load_file(adapter / WEIGHTS)
    merged = 0
    for file in sorted(folder.glob("*.safetensors")):
        tensors = load_file(file)
        for name, values in tensors.items():
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{stem}.lora_A.weight" in updates:
                down, up = (updates[f"{stem}.lora_{kind}.weight"].astype(np.float64) for kind in "AB")
                tensors[name] = (values + scale * (up @ down)).astype(np.float32)
                merged += 1
        save_file(tensors, file, metadata={"format": "pt"})
    assert 2 * merged == len(updates)
    return folder


if __name__ == "__main__":
    model_config = open_model(sys.argv[1]).config
    for number, name in enumerate(sys.argv[3:], 1):
        print(write_adapter(Path(sys.argv[2]) / name, model_config, number))
