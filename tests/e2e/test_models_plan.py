"""`pitstop models plan` on the command line, and of tiny models with experts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_grok import write_grok1, write_grok2
from tiny_models import write_tiny_model
from to_gguf import write_gguf
from typer.testing import CliRunner

from pitstop.cli import app

WRITE = {"grok1": write_grok1, "grok2": write_grok2}


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["models", "plan", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_published_grok_1() -> None:
    lines = run("xai-org/grok-1").splitlines()
    assert sum("tensor00" in line for line in lines) == 770
    totals = "\n".join(lines[770:])
    for part in (
        "318,364,475,392 bytes  296.5 GiB",
        "8 experts, 2 for a token",
        "135,168 as int8",
        "5 × A100 80G SXM, 8 where",
        "3 × H200",
    ):
        assert part in totals
    assert run("xai-org/grok-1", "--summary").strip() == totals.strip()


@pytest.mark.parametrize("family", ["grok1", "grok2"])
def test_a_checkpoint_of_our_own(tmp_path: Path, family: str) -> None:
    folder = WRITE[family](tmp_path / family)
    found = json.loads(run(str(folder), "--json"))
    files = [*folder.glob("ckpt-0/*"), *folder.glob("*.safetensors")]
    on_disk = sum(file.stat().st_size for file in files)
    assert 0.8 * on_disk < found["bytes"] < on_disk
    assert {tensor["file"].removeprefix("ckpt-0/") for tensor in found["tensors"]} == {file.name for file in files}
    assert {"experts", "router", "attention", "norms", "embedding"} <= found["parts"].keys()


def test_merged_experts_of_a_gguf_file(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "qwen3_moe", "qwen3_moe", mlp_only_layers=[])
    of_folder, of_file = (json.loads(run(str(path), "--json")) for path in (folder, write_gguf(tmp_path / "tiny.gguf", folder)))
    assert of_file["parts"] == of_folder["parts"]
    assert of_file["read_for_a_token"] == of_folder["read_for_a_token"]
    assert of_file["bytes"] - of_file["read_for_a_token"] > of_file["parts"]["experts"] // 2
