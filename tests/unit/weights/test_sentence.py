"""What a folder says of embeddings, and what of it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from sentence_folders import wordpiece, write_modules
from toy_folder import write_toy_folder

from pitstop.errors import Unsupported, WeightsError
from pitstop.models.embedding import Embedding
from pitstop.models.encoder_config import EncoderConfig
from pitstop.models.families.bert import FAMILY
from pitstop.models.plan import plan
from pitstop.models.weights.folder import open_folder
from pitstop.models.weights.sentence import read_embedding

CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 300,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "position_embedding_type": "absolute",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}


def write_bert(folder: Path, prefix: str = "", more: dict[str, np.ndarray] | None = None, old: bool = False, **changes: object) -> Path:
    """A BERT of zeros. prefix: before the tensors' names; more: tensors beside; old: names of norms as in the first years."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    wordpiece().save(str(folder / "tokenizer.json"))
    shapes = EncoderConfig("bert", 1, 16, 2, 24, 300, 32, 32, 0, 2, 1e-12, "gelu_erf").tensors()
    tensors = {prefix + FAMILY.hugging_face(name): np.zeros(shape, np.float32) for name, shape in shapes.items()}
    if old:
        ends = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for now, then in ends.items():
            tensors = {name.replace(now, then): tensor for name, tensor in tensors.items()}
    save_file(tensors | (more or {}), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_modules_say_how(tmp_path: Path, pooling: str, normalize: bool) -> None:
    write_modules(write_bert(tmp_path), pooling, normalize, 16)
    assert open_folder(tmp_path).embedding() == Embedding(pooling, normalize)


def test_without_modules_nothing_is_said(tmp_path: Path) -> None:
    assert open_folder(write_bert(tmp_path)).embedding() is None
    assert open_folder(write_toy_folder(tmp_path / "decoder")).embedding() is None


def test_a_decoders_folder_may_say_it_too(tmp_path: Path) -> None:
    write_modules(write_toy_folder(tmp_path, matryoshka_dimensions=[16, 8]), "last", True, 64)
    assert open_folder(tmp_path).embedding() == Embedding("last", True, (8, 16))


def test_pooling_by_name(tmp_path: Path) -> None:
    """As newer versions write it."""
    write_modules(write_bert(tmp_path), "mean", True, 16)
    stated = {"embedding_dimension": 16, "pooling_mode": "lasttoken", "include_prompt": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(stated))
    assert open_folder(tmp_path).embedding() == Embedding("last", True)


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | values))


@pytest.mark.parametrize(
    ("file", "values", "complaint"),
    [
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "another pooling than one of"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "another pooling than one of"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pooling_mode = 'max' is not honoured"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, "another pooling"),
        ("1_Pooling/config.json", {"surprise": 1}, "surprise = 1 is not honoured"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "default_prompt_name = 'query'"),
        ("config_sentence_transformers.json", {"truncate_dim": 8}, "truncate_dim = 8"),
        ("config.json", {"matryoshka_dimensions": "8"}, "matryoshka_dimensions"),
    ],
)
def test_what_is_not_honoured_is_refused(tmp_path: Path, file: str, values: dict, complaint: str) -> None:
    write_modules(write_bert(tmp_path), "mean", True, 16)
    change(tmp_path / file, **values)
    with pytest.raises(WeightsError, match=complaint):
        open_folder(tmp_path).embedding()


@pytest.mark.parametrize("kinds", [["Transformer", "Pooling", "Dense"], ["Transformer"], ["Pooling", "Transformer"]])
def test_other_modules_are_refused(tmp_path: Path, kinds: list[str]) -> None:
    modules = [{"idx": i, "path": "", "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(WeightsError, match=f"asks for {', '.join(kinds)}"):
        read_embedding(tmp_path, {})
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises(WeightsError, match="asks for"):
        read_embedding(tmp_path, {})


@pytest.mark.parametrize("modules", ["{}", "[3]", "[" * 10**5, '[{"idx": 0, "type": "Transformer"}]', "no"])
def test_damaged_modules(tmp_path: Path, modules: str) -> None:
    write_modules(write_bert(tmp_path), "mean", True, 16)
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(WeightsError, match=r"modules\.json: is n"):
        open_folder(tmp_path).embedding()


def test_a_damaged_path_of_a_module(tmp_path: Path) -> None:
    kinds = ("Transformer", "Pooling")
    (write_bert(tmp_path) / "modules.json").write_text(json.dumps([{"idx": i, "type": kind, "path": i} for i, kind in enumerate(kinds)]))
    with pytest.raises(WeightsError, match=f"^{tmp_path}: does not say soundly"):
        open_folder(tmp_path).embedding()


def test_the_context_is_what_the_model_was_made_for(tmp_path: Path) -> None:
    assert open_folder(write_bert(tmp_path)).config.context == 32
    change(tmp_path / "sentence_bert_config.json", max_seq_length=20, do_lower_case=False)
    assert open_folder(tmp_path).config.context == 20
    change(tmp_path / "sentence_bert_config.json", do_lower_case=True)
    with pytest.raises(WeightsError, match="do_lower_case"):
        open_folder(tmp_path)


@pytest.mark.parametrize("old", [False, True], ids=["weight", "gamma"])
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_heads_of_training_stand_aside(tmp_path: Path, prefix: str, old: bool) -> None:
    numbers = {"embeddings.position_ids": np.arange(32)[None], "pooler.dense.weight": np.ones((16, 16), np.float32)}
    beside = {prefix + name: value for name, value in numbers.items()} | {"cls.predictions.bias": np.ones(300, np.float32)}
    folder = open_folder(write_bert(tmp_path, prefix, beside, old, architectures=["BertForPreTraining"]))
    for name, shape in folder.config.tensors().items():
        assert folder.tensor(name, shape).dequantize().shape == shape
    assert folder.notes() == ["weights: 0.0 million in F32"]


def test_what_is_no_part_of_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no part of a bert encoder"):
        open_folder(write_bert(tmp_path, more={"adapter.weight": np.ones(3, np.float32)}))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, "no encoder that embeds text"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key' is not honoured"),
        ({"hidden_act": "silu"}, "hidden_act = 'silu' is not honoured"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"num_attention_heads": 3}, "heads do not divide"),
        ({"surprise": 1}, "surprise = 1"),
    ],
)
def test_configs_are_read_strictly(tmp_path: Path, changes: dict, complaint: str) -> None:
    with pytest.raises(WeightsError, match=complaint):
        open_folder(write_bert(tmp_path, **changes))


def test_no_plan_of_an_encoder(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="is an encoder"):
        plan(str(write_bert(tmp_path)))


def test_finish() -> None:
    vector = np.array([3, 0, 4, 12], np.float32)
    assert np.array_equal(Embedding("mean", False).finish(vector), vector)
    assert np.allclose(Embedding("mean").finish(vector), vector / 13)
    assert np.allclose(Embedding("mean", False, (3,)).finish(vector, 3), [0.6, 0, 0.8])
    assert np.array_equal(Embedding("mean").finish(np.zeros(3, np.float32)), np.zeros(3))
    assert Embedding("mean").finish(vector).dtype == np.float32
