"""Reading Hugging Face folders: what they hold, and every broken one ends in one line that names the file and the tensor or key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_folder
import toy_gguf
from safetensors.numpy import load_file
from toy_folder import write_toy_folder

from pitstop.errors import ConfigError, WeightsError
from pitstop.models.families import by_model_type
from pitstop.models.families.gemma2 import FAMILY as GEMMA2
from pitstop.models.families.grok2 import PUBLISHED as GROK2
from pitstop.models.keys import Keys
from pitstop.models.rope import Rope
from pitstop.models.weights import fetch
from pitstop.models.weights.folder import HARMLESS, NEUTRAL, read_config
from pitstop.models.weights.source import open_model
from pitstop.text.tokenizer import Tokenizer, end_tokens


def read_all(folder: Path) -> None:
    source = open_model(folder)
    for name, shape in source.config.tensors().items():
        source.tensor(name, shape)
    source.vocabulary()


def refused(folder: Path) -> WeightsError:
    """The error that opening the folder and reading all that a model needs ends in: one line that begins with a file of the folder."""
    with pytest.raises(WeightsError) as caught:
        read_all(folder)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)
    return caught.value


def rewritten(folder: Path, file: str, **changes: Any) -> Path:
    """The folder, with keys of a JSON file changed."""
    path = folder / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_toy_folder(tmp_path / "toy")


@pytest.mark.parametrize("shards", [1, 3])
def test_what_it_holds(tmp_path: Path, shards: int) -> None:
    source = open_model(write_toy_folder(tmp_path / "toy", shards))
    assert (source.config.architecture, source.config.rope, source.config.rope_interleaved) == ("llama", Rope(10000.0), False)
    assert (source.config.layers, source.config.head_dim, source.config.context) == (2, 16, 1024)
    for name, values in toy_gguf.tensors():
        tensor = source.tensor(name, values.shape)
        assert tensor.kind == "F32"
        assert np.array_equal(tensor.dequantize(), values)


def test_half_precision_is_kept(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    toy_folder.write_tensors(folder, {name: values.astype(np.float16) for name, values in tensors.items()})
    tensor = open_model(folder).tensor("blk.1.ffn_up.weight", (96, 64))
    assert tensor.kind == "F16"
    assert np.array_equal(tensor.data, tensors["model.layers.1.mlp.up_proj.weight"].astype(np.float16))


def test_bfloat16_is_the_upper_half_of_fp32(folder: Path) -> None:
    raw = bytearray((folder / "model.safetensors").read_bytes())
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    name = "model.norm.weight"
    values = np.arange(64, dtype=np.float32)
    begin, _ = header[name]["data_offsets"]
    kept = {name: {"dtype": "BF16", "shape": [64], "data_offsets": [0, 128]}}
    head = json.dumps(kept).encode()
    data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    (folder / "part.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    placed = dict.fromkeys(set(header) - {"__metadata__", name}, "rest.safetensors") | {name: "part.safetensors"}
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    (folder / "model.safetensors").unlink()
    toy_folder.save_file(tensors, folder / "rest.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    assert begin >= 0
    tensor = open_model(folder).tensor("output_norm.weight", (64,))
    assert tensor.kind == "BF16"
    assert np.array_equal(tensor.dequantize(), values)


def test_names_of_tensors() -> None:
    assert GEMMA2.hugging_face("blk.11.ffn_norm.weight") == "model.layers.11.pre_feedforward_layernorm.weight"
    assert GEMMA2.hugging_face("blk.0.post_attention_norm.weight") == "model.layers.0.post_attention_layernorm.weight"
    assert GEMMA2.hugging_face("token_embd.weight") == "model.embed_tokens.weight"


def test_a_family_that_the_architectures_name(tmp_path: Path) -> None:
    """Grok-2's release states no model_type."""
    (tmp_path / "config.json").write_text(json.dumps(GROK2))
    _, family, config, _ = read_config(tmp_path)
    assert config.architecture == family.name == "grok2"
    assert by_model_type(config.architecture) is family


QWEN = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10_001}, "num_hidden_layers = 10001 is more than 10000"),
        (QWEN | {"num_hidden_layers": 10_001}, "num_hidden_layers = 10001 is more than 10000"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers = 2147483648 is more than 10000"),
        (MIXTRAL | {"num_local_experts": 50_001}, "num_local_experts = 50001 is more than 50000"),  # of two layers
        ({"vocab_size": 10_000_001}, "vocab_size = 10000001 is more than 10000000"),
        ({"hidden_size": 2**31}, "hidden_size = 2147483648 is more than 2147483647"),
        (MIXTRAL | {"num_local_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok = 3 is more than the 2 experts of a layer"),
        ({"num_attention_heads": 128}, "a head size of 0"),
        (QWEN | {"max_window_layers": "x"}, "does not describe a model soundly (TypeError"),
        (QWEN | {"layer_types": [["a"], ["b"]]}, "layer_types = [['a'], ['b']] is not a list of"),
        ({"architectures": 5}, "does not describe a model soundly (TypeError"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1] * 8, "long_factor": [1] * 8, "original_max_position_embeddings": 1}},
            "does not describe a model soundly (ZeroDivisionError",
        ),
    ],
    ids=str,
)
def test_damaged_configs(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    error = str(refused(write_toy_folder(tmp_path / "toy", **changes)))
    assert "config.json: " in error
    assert message in error


def test_a_damaged_config_of_grok_1(tmp_path: Path) -> None:
    (tmp_path / "tensor00000_000").touch()
    scaling = {"type": "longrope", "short_factor": [1] * 64, "long_factor": [1] * 64, "original_max_position_embeddings": 1}
    error = refused(rewritten(tmp_path, "config.json", rope_scaling=scaling))
    assert "is no sound checkpoint (ZeroDivisionError" in str(error)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"])
def test_json_that_is_nested_deeply(folder: Path, file: str) -> None:
    (folder / file).write_text('{"a":' + "[" * 10**5 + "]" * 10**5 + "}")
    assert f"{file}: is not JSON" in str(refused(folder))


def test_damaged_chat_templates(folder: Path) -> None:
    rewritten(folder, "tokenizer_config.json", chat_template=["old"])
    assert "does not hold a sound tokenizer (AttributeError" in str(refused(folder))
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    assert "does not hold a sound tokenizer (UnicodeDecodeError" in str(refused(folder))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_files(folder: Path, file: str) -> None:
    (folder / file).unlink()
    assert file in str(refused(folder))
    assert "fetch the folder again" in str(refused(folder))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_toy_folder(tmp_path / "toy", 3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    error = refused(folder)
    assert f"{folder}/model-00002-of-00003.safetensors: tensor " in str(error)
    assert "is missing, shard 2 of 3; fetch the folder again" in str(error)


def test_a_truncated_shard_names_the_tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    last = max(header, key=lambda name: header[name]["data_offsets"][1])
    path.write_bytes(whole[:-1])
    assert refused(folder).tensor == last
    for length in (0, 5, 100, 2000):
        path.write_bytes(whole[:length])
        assert "truncated" in str(refused(folder))


def test_broken_headers(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    for header in (b"not json", b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}', b"[" * size):
        path.write_bytes(whole[:8] + header.ljust(size) + whole[8 + size :])
        assert "not a sound safetensors file" in str(refused(folder))


def test_an_index_that_lies(tmp_path: Path) -> None:
    folder = write_toy_folder(tmp_path / "toy", 2)
    placed = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    other = {name: f"model-0000{3 - int(file[10])}-of-00002.safetensors" for name, file in placed.items()}
    assert "is missing here" in str(refused(rewritten(folder, "model.safetensors.index.json", weight_map=other)))
    outside = dict.fromkeys(placed, "../secret.safetensors")
    assert "files beside it" in str(refused(rewritten(folder, "model.safetensors.index.json", weight_map=outside)))


def test_missing_misshapen_and_unknown_tensors(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    toy_folder.write_tensors(folder, {other: values for other, values in tensors.items() if other != name})
    assert refused(folder).tensor == name
    toy_folder.write_tensors(folder, tensors | {name: tensors[name].T.copy()})
    assert "has shape [64, 32], expected [32, 64]" in str(refused(folder))
    toy_folder.write_tensors(folder, tensors | {name: tensors[name].astype(np.float64)})
    assert "is stored as F64; we read F32, F16, BF16" in str(refused(folder))
    toy_folder.write_tensors(folder, tensors | {"model.layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)})
    assert refused(folder).tensor == "model.layers.0.self_attn.q_norm.weight"
    toy_folder.write_tensors(folder, tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)})
    open_model(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "mamba"),
        ("architectures", ["LlamaForSequenceClassification"]),
        ("hidden_act", "relu"),
        ("mlp_bias", True),
        ("quantization_config", {"quant_method": "gptq"}),
        ("sliding_window", 128),
        ("residual_multiplier", 0.2),
        ("a_key_of_next_year", 1),
        ("auto_map", {"AutoModel": "modeling.Model"}),
        ("partial_rotary_factor", 0.5),
        ("num_key_value_heads", 3),
        ("head_dim", 15),
        ("hidden_size", "64"),
        ("rms_norm_eps", -1.0),
        ("tie_word_embeddings", "yes"),
        ("eos_token_id", 9999),
        ("rope_scaling", {"type": "longer", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "linear"}),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0, "mrope_section": [1, 2]}),
        ("rope_scaling", {"rope_type": "linear", "type": "yarn", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 8}),
        ("rope_parameters", {"full_attention": {"rope_type": "default"}}),
        ("rope_scaling", [4]),
    ],
    ids=str,
)
def test_what_is_not_honoured_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    error = str(refused(write_toy_folder(tmp_path / "toy", **{key: value})))
    assert "config.json: " in error
    assert key in error or (key == "num_key_value_heads" and "num_attention_heads" in error)


@pytest.mark.parametrize(
    ("key", "value"),
    [("mlp_bias", False), ("quantization_config", None), ("use_cache", True), ("rope_scaling", {"type": "default"}), ("head_dim", None)],
)
def test_what_changes_nothing_is_accepted(tmp_path: Path, key: str, value: Any) -> None:
    assert open_model(write_toy_folder(tmp_path / "toy", **{key: value})).config.rope == Rope(10000.0)


PUBLISHED = {
    "Qwen 2.5, stretched": (
        {
            "model_type": "qwen2",
            "architectures": ["Qwen2ForCausalLM"],
            "max_position_embeddings": 32768,
            "max_window_layers": 28,
            "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
            "sliding_window": 131072,
            "use_mrope": False,
            "use_sliding_window": False,
        },
        131072,
    ),
    "SmolLM2": ({"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"kv_cache_dtype": {}}}, 1024),
    "Llama 3.2": (
        {
            "head_dim": 16,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "pretraining_tp": 1,
            "rope_scaling": {
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
        },
        131072,
    ),
    "Mistral 0.3": ({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}, 1024),
    "Gemma 2": (
        {
            "model_type": "gemma2",
            "architectures": ["Gemma2ForCausalLM"],
            "attn_logit_softcapping": 50.0,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": 30.0,
            "head_dim": 16,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 16,
            "sliding_window": 4096,
            "sliding_window_size": 4096,
        },
        1024,
    ),
    "Gemma 3 1B": (
        {
            "model_type": "gemma3_text",
            "architectures": ["Gemma3ForCausalLM"],
            "attn_logit_softcapping": None,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": None,
            "head_dim": 16,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "rope_local_base_freq": 10000,
            "rope_theta": 1000000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
        1024,
    ),
}
"""Keys that stand in published checkpoints, at our sizes, and the context that follows."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(tmp_path: Path, name: str) -> None:
    changes, context = PUBLISHED[name]
    path = tmp_path / "config.json"
    stated = toy_folder.CONFIG | changes
    keys = Keys(path, stated)
    assert by_model_type(stated["model_type"]).read(keys).context == context
    keys.refuse_unread(HARMLESS, NEUTRAL)


def test_both_spellings_of_rope(tmp_path: Path) -> None:
    old = write_toy_folder(tmp_path / "old", rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2})
    new = write_toy_folder(tmp_path / "new", rope_theta=None, rope_parameters={"rope_type": "linear", "factor": 2, "rope_theta": 5e5})
    assert open_model(old).config == open_model(new).config
    assert open_model(old).config.context == 2048
    both = write_toy_folder(tmp_path / "both", rope_scaling={"type": "linear", "factor": 2}, rope_parameters={"rope_theta": 5e5})
    assert "keep one of them" in str(refused(both))


def test_names_of_models(folder: Path) -> None:
    assert fetch.pull(str(folder)) == folder
    before = fetch.identity(folder)
    (folder / "generation_config.json").write_text("{}")
    assert fetch.identity(folder) != before
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"a folder without config\.json"):
        fetch.pull(str(folder))


def test_vocabulary(folder: Path) -> None:
    rewritten(folder, "tokenizer_config.json", bos_token="<|im_start|>", eos_token={"content": "<|im_end|>"}, chat_template="old")
    rewritten(folder, "generation_config.json", eos_token_id=[2, 0, 100])
    vocabulary = open_model(folder).vocabulary()
    tokenizer = Tokenizer(vocabulary)
    assert (vocabulary.bos, vocabulary.eos, vocabulary.add_bos, vocabulary.chat_template) == (1, 2, False, "old")
    assert end_tokens(vocabulary) == {0, 2, 100}
    assert tokenizer.encode("a<|im_end|>") == [3 + byte for byte in b"a<|im_end|>"]
    assert tokenizer.encode("a<|im_end|>", control=True) == [3 + ord("a"), 2]
    assert tokenizer.decode([2, 3 + 0xE4, 3 + 0xBD, 3 + 0xA0]) == "<|im_end|>你"
    (folder / "chat_template.jinja").write_text("new")
    assert open_model(folder).vocabulary().chat_template == "new"


def test_rows_without_a_token_stand_for_nothing(tmp_path: Path) -> None:
    folder = write_toy_folder(tmp_path / "toy", vocab_size=272)
    vocabulary = open_model_without_weights(folder).vocabulary()
    tokenizer = Tokenizer(vocabulary)
    assert tokenizer.vocab_size == 272
    assert tokenizer.token_bytes(271) == b""


def open_model_without_weights(folder: Path):
    """With an embedding that fits config.json's vocabulary."""
    tensors = load_file(folder / "model.safetensors")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    toy_folder.write_tensors(folder, tensors | {"model.embed_tokens.weight": np.zeros((size, 64), np.float32)})
    return open_model(folder)


def test_added_tokens_beyond_the_vocabulary_are_text(folder: Path) -> None:
    tokenizer = toy_folder.tokenizer()
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": 259, "content": "<image>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert Tokenizer(open_model(folder).vocabulary()).encode("<image>", control=True) == [3 + byte for byte in b"<image>"]


def changed(**model: Any) -> dict[str, Any]:
    tokenizer = toy_folder.tokenizer()
    return tokenizer | {"model": tokenizer["model"] | model}


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ({}, "no tokenizer"),
        (changed(type="WordPiece"), "we have BPE"),
        (changed(end_of_word_suffix="</w>"), "we have BPE"),
        (changed(vocab={"a": 259}), "outside the vocabulary of 259"),
        (toy_folder.tokenizer() | {"pre_tokenizer": None, "decoder": None}, "neither byte-level"),
        (toy_folder.tokenizer() | {"added_tokens": [toy_folder.tokenizer()["added_tokens"][0] | {"lstrip": True}]}, "takes the space"),
    ],
)
def test_tokenizers_that_we_do_not_read(folder: Path, tokenizer: dict, message: str) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert message in str(refused(folder))
