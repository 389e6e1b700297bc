"""`models plan` without weights: the published releases by the figures on record, folders and files by what lies in them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy_folder import CONFIG, write_toy_folder
from toy_gguf import write_toy_gguf

from pitstop.errors import WeightsError
from pitstop.models.plan import plan
from pitstop.roofline.hardware import ACCELERATORS, Accelerator, read_seconds, together


def test_grok_1_by_the_figures_on_record() -> None:
    """314 billion weights in 770 files, about 318 GB; two of eight experts and everything else are read for a token."""
    found = plan("xai-org/grok-1")
    assert len(found.tensors) == len({tensor.file for tensor in found.tensors}) == 770
    assert found.nbytes == 318_364_475_392
    weights = sum(t.nbytes if t.stored.startswith("int8") else t.nbytes // 4 for t in found.tensors)
    assert 314e9 < weights < 317e9
    assert {t.file: (t.name, t.shape) for t in found.tensors}["ckpt-0/tensor00000_000"] == (
        "language_model/in_out_embed/embeddings",
        (131072, 6144),
    )
    assert found.read_for_a_token() == found.nbytes - found.by_part()["experts"] * 6 // 8


def test_grok_2_by_the_figures_on_record() -> None:
    """18 kinds of tensors, three of them in eight files: 39 files of 539 GB."""
    found = plan("xai-org/grok-2")
    assert found.config.architecture == "grok2"  # though the release states no model_type
    assert found.nbytes == 539_030_994_944
    files = {tensor.file for tensor in found.tensors}
    assert len(files) == 18
    assert sum(8 if "…" in file else 1 for file in files) == 39
    by_name = {tensor.name: tensor for tensor in found.tensors}
    assert by_name["model.layers.3.mlp.gate_proj.weight"].file == "pytorch_model-00003-TP-common.safetensors"
    assert by_name["model.layers.63.block_sparse_moe.experts.7.w2.weight"].shape == (8192, 16384)
    assert by_name["model.layers.63.block_sparse_moe.experts.7.w2.weight"].file == "pytorch_model-00007-TP-000.safetensors … 007"


def test_a_folder_by_what_lies_in_it(tmp_path: Path) -> None:
    found = plan(str(write_toy_folder(tmp_path / "toy", shards=2)))
    assert {tensor.file for tensor in found.tensors} == {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    on_disk = sum(file.stat().st_size for file in (tmp_path / "toy").glob("*.safetensors"))
    assert on_disk - 10_000 < found.nbytes < on_disk
    assert {tensor.stored for tensor in found.tensors} == {"F32"}
    assert list(found.by_part()) == ["embedding", "attention", "feed-forward", "norms"]


def test_a_config_alone_is_enough(tmp_path: Path) -> None:
    whole = plan(str(write_toy_folder(tmp_path / "toy")))
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "toy" / "config.json", tmp_path / "alone")
    found = plan(str(tmp_path / "alone"))
    assert {(t.name, t.shape, t.nbytes, t.part) for t in found.tensors} == {(t.name, t.shape, t.nbytes, t.part) for t in whole.tensors}
    assert {tensor.file for tensor in found.tensors} == {""}


def test_a_gguf_file(tmp_path: Path) -> None:
    path = write_toy_gguf(tmp_path / "toy.gguf")
    found = plan(str(path))
    assert path.stat().st_size - 20_000 < found.nbytes < path.stat().st_size
    assert {tensor.file for tensor in found.tensors} == {"toy.gguf"}


def test_mixtral_reads_its_share_of_experts(tmp_path: Path) -> None:
    """The published sizes of Mixtral 8x7B: 46.7 billion weights, 12.9 of them for a token."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
    experts = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 8}
    stated = CONFIG | sizes | experts | {"tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    found = plan(str(tmp_path))
    assert round(found.nbytes / 2 / 1e9, 1) == 46.7
    assert round(found.read_for_a_token() / 2 / 1e9, 1) == 12.7  # the embedding's other rows are not read


def test_what_we_do_not_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"logit_scale": 0.1}))
    with pytest.raises(WeightsError, match=r"logit_scale = 0\.1 is not honoured"):
        plan(str(tmp_path))


def test_planning_needs_no_torch() -> None:
    code = "import sys; from pitstop.models.plan import plan; plan('xai-org/grok-1'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_how_many_accelerators() -> None:
    device = Accelerator("toy", 100.0, 10.0)
    assert [device.needed(size) for size in (1, 90, 91, 180, 181)] == [1, 1, 2, 2, 3]
    assert [together(count) for count in (1, 2, 3, 5, 8)] == [1, 2, 4, 8, 8]
    assert read_seconds(80, device, 4) == 2.0
    assert len({accelerator.name for accelerator in ACCELERATORS}) == len(ACCELERATORS)
