"""Reading GGUF files: every kind's values, and every broken file ends in one line that names it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import toy_gguf
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from kquants import K_KINDS, random_blocks

from pitstop.errors import WeightsError
from pitstop.models.config import ModelConfig
from pitstop.models.rope import Divided, Linear, Rope, Yarn, yarn_attention
from pitstop.models.weights.gguf import open_gguf
from pitstop.models.weights.tensor import KINDS
from pitstop.text.tokenizer import Tokenizer


def read_all(path: Path) -> None:
    file = open_gguf(path)
    file.vocabulary()
    file.embedding()


def refused(path: Path) -> WeightsError:
    """The error that opening the file and reading all that a model needs ends in: one line that begins with the file's name."""
    with pytest.raises(WeightsError) as caught:
        read_all(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    return caught.value


def toy_with(path: Path, **keys: str | int | float | list) -> Path:
    """The toy model with more keys under "llama."; a dot is written as two underscores."""
    return toy_stating(path, {"llama." + key.replace("__", "."): value for key, value in keys.items()})


def toy_stating(path: Path, keys: dict[str, str | int | float | list | None]) -> Path:
    """The toy model with these keys, or without those that are None."""
    writer = GGUFWriter(path, "llama")
    toy_gguf.add_keys(writer)
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    for key, value in keys.items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            add[type(value)](key, value)
    for name, values in toy_gguf.tensors():
        toy_gguf.add_tensor(writer, name, values, "F32")
    toy_gguf.finish(writer)
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_config(tmp_path: Path, tied: bool) -> None:
    file = open_gguf(toy_gguf.write_toy_gguf(tmp_path / "toy.gguf", context=512, tied=tied))
    assert file.config == ModelConfig(
        architecture="llama",
        layers=2,
        width=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        ffn=96,
        vocab_size=259,
        context=512,
        norm_eps=float(np.float32(1e-5)),
        rope=Rope(10000.0),
        rope_interleaved=True,
        attention_scale=0.25,
        tied_head=tied,
    )


def test_vocabulary(tmp_path: Path) -> None:
    vocabulary = open_gguf(toy_gguf.write_toy_gguf(tmp_path / "toy.gguf")).vocabulary()
    assert vocabulary.model == "gpt2"
    assert vocabulary.pre == "smollm"
    assert vocabulary.tokens == [*toy_gguf.CONTROL, *toy_gguf.byte_alphabet()]
    assert vocabulary.types == [3, 3, 3] + [1] * 256
    assert vocabulary.merges == []
    assert (vocabulary.bos, vocabulary.eos, vocabulary.add_bos) == (1, 2, False)
    assert vocabulary.chat_template == toy_gguf.CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("pre", "begins"), [("llama-bpe", True), ("llama3", True), ("llama-v3", True), ("smollm", False), ("qwen2", False)]
)
def test_the_first_token_where_the_file_does_not_say(tmp_path: Path, pre: str, begins: bool) -> None:
    vocabulary = open_gguf(
        toy_stating(tmp_path / "toy.gguf", {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": None})
    ).vocabulary()
    assert vocabulary.add_bos == begins
    assert (Tokenizer(vocabulary).encode_prompt("a")[0] == vocabulary.bos) == begins
    assert not open_gguf(toy_stating(tmp_path / "stated.gguf", {"tokenizer.ggml.pre": pre})).vocabulary().add_bos


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"llama.block_count": 21}, "llama.block_count = 21 is more than 20"),  # tensors of the file
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": "4", "llama.rope.scaling.attn_factor": 1.0}, "TypeError"),
        ({"llama.pooling_type": [1]}, "llama.pooling_type is not a int"),
        ({"tokenizer.chat_template": 5}, "tokenizer.chat_template is not a str"),
        ({"tokenizer.ggml.tokens": [1] * 259}, "tokenizer.ggml.tokens is not a list of str"),
        ({"tokenizer.ggml.merges": [1]}, "tokenizer.ggml.merges is not a list of str"),
        ({"tokenizer.ggml.token_type": ["a"] * 259}, "tokenizer.ggml.token_type is not a list of int"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": ["a"] * 259}, "tokenizer.ggml.scores is not a list of float"),
    ],
    ids=str,
)
def test_damaged_keys(tmp_path: Path, keys: dict, message: str) -> None:
    assert message in str(refused(toy_stating(tmp_path / "toy.gguf", keys)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in K_KINDS])
def test_tensors_hold_what_was_written(tmp_path: Path, kind: str) -> None:
    file = open_gguf(toy_gguf.write_toy_gguf(tmp_path / "toy.gguf", kind, seed=3))
    for name, values in toy_gguf.tensors(seed=3):
        tensor = file.tensor(name, values.shape)
        stored = kind if values.ndim == 2 else "F32"
        dtype = GGMLQuantizationType[stored]
        assert (tensor.kind, tensor.shape) == (stored, values.shape)
        got = tensor.dequantize()
        assert got.dtype == np.float32
        assert np.array_equal(got, dequantize(quantize(values, dtype), dtype))
        assert np.abs(got - values).max() <= {"F32": 0, "F16": 1e-3, "BF16": 1e-2, "Q8_0": 2e-2}.get(stored, 0.3) * np.abs(values).max()


@pytest.mark.parametrize("kind", K_KINDS)
def test_blocks_of_256(tmp_path: Path, kind: str) -> None:
    """Read as they lie in the file; the note tells the operator of them."""
    writer = GGUFWriter(path := tmp_path / "toy.gguf", "llama")
    toy_gguf.add_keys(writer)
    blocks = random_blocks(kind, 96, 512, np.random.default_rng(0))
    for name, values in toy_gguf.tensors():
        if name == "blk.1.ffn_up.weight":
            writer.add_tensor(name, blocks, raw_dtype=GGMLQuantizationType[kind])
        else:
            toy_gguf.add_tensor(writer, name, values, "F32")
    toy_gguf.finish(writer)
    file = open_gguf(path)
    tensor = file.tensor("blk.1.ffn_up.weight", (96, 512))
    assert (tensor.kind, tensor.shape) == (kind, (96, 512))
    assert np.array_equal(tensor.data, blocks)
    assert np.array_equal(tensor.dequantize(), dequantize(blocks, GGMLQuantizationType[kind]))
    assert file.notes() == [f"weights: 0.1 million in F32, 0.0 million in {kind}"]


@pytest.mark.model
def test_default_model_reads_as_the_library_reads_it(model_path: Path) -> None:
    file, reader = open_gguf(model_path), GGUFReader(model_path)
    vocabulary = file.vocabulary()
    assert vocabulary.tokens == reader.fields["tokenizer.ggml.tokens"].contents()
    assert vocabulary.merges == reader.fields["tokenizer.ggml.merges"].contents()
    assert vocabulary.types == reader.fields["tokenizer.ggml.token_type"].contents()
    for stored in reader.tensors:
        tensor = file.tensor(stored.name, tuple(stored.shape[::-1].tolist()))
        assert tensor.kind == stored.tensor_type.name
        assert np.array_equal(tensor.data, stored.data)
    assert file.config.tied_head
    assert file.config.head_dim == 64


def test_not_a_model_file(tmp_path: Path) -> None:
    assert "No such file" in str(refused(tmp_path / "missing.gguf"))
    assert "directory" in str(refused(tmp_path))
    (empty := tmp_path / "empty.gguf").touch()
    assert "empty" in str(refused(empty))
    (text := tmp_path / "text.gguf").write_text("# hello, this is not a model\n")
    assert "not a GGUF file" in str(refused(text))


def test_other_versions_and_byte_orders(tmp_path: Path) -> None:
    whole = bytearray(toy_gguf.write_toy_gguf(tmp_path / "toy.gguf").read_bytes())
    (future := tmp_path / "future.gguf").write_bytes(whole[:4] + (99).to_bytes(4, "little") + whole[8:])
    assert "version 99" in str(refused(future))
    (swapped := tmp_path / "swapped.gguf").write_bytes(whole[:4] + (3).to_bytes(4, "big") + whole[8:])
    assert "byte order" in str(refused(swapped))


def test_truncated_anywhere(tmp_path: Path) -> None:
    whole = toy_gguf.write_toy_gguf(tmp_path / "toy.gguf", "Q4_0").read_bytes()
    tensors_end = len(whole.rstrip(b"\0"))
    header = whole.index(b"blk.1.ffn_down.weight")
    cut = tmp_path / "cut.gguf"
    for length in [*range(5, 200), *range(200, header, 37), *range(header, tensors_end, 1999), tensors_end - 1]:
        cut.write_bytes(whole[:length])
        assert "truncated" in str(refused(cut)), length


def test_truncated_tensor_is_named(tmp_path: Path) -> None:
    whole = toy_gguf.write_toy_gguf(tmp_path / "toy.gguf").read_bytes()
    (cut := tmp_path / "cut.gguf").write_bytes(whole[:-1])
    error = refused(cut)
    assert error.tensor == "output_norm.weight"
    assert "truncated" in str(error)


def test_absurd_counts_are_refused_at_once(tmp_path: Path) -> None:
    whole = bytearray(toy_gguf.write_toy_gguf(tmp_path / "toy.gguf").read_bytes())
    tokens = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens")
    for offset in (8, 16, 24, tokens + 8):  # tensor count, key count, first key's length, array length
        bad = bytearray(whole)
        bad[offset : offset + 8] = (2**62).to_bytes(8, "little")
        (path := tmp_path / "bad.gguf").write_bytes(bad)
        assert "truncated" in str(refused(path))


def test_missing_tensor_and_wrong_shape(tmp_path: Path) -> None:
    file = open_gguf(toy_gguf.write_toy_gguf(tmp_path / "toy.gguf"))
    with pytest.raises(WeightsError, match=r"toy\.gguf: tensor output\.weight: is missing") as caught:
        file.tensor("output.weight", (259, 64))
    assert caught.value.tensor == "output.weight"
    with pytest.raises(WeightsError, match=r"tensor blk\.0\.attn_k\.weight: has shape \[32, 64\], expected \[64, 32\]"):
        file.tensor("blk.0.attn_k.weight", (64, 32))


def test_kinds_that_we_do_not_read(tmp_path: Path) -> None:
    writer = GGUFWriter(path := tmp_path / "toy.gguf", "llama")
    toy_gguf.add_keys(writer)
    for name, values in toy_gguf.tensors():
        toy_gguf.add_tensor(writer, name, values, "MXFP4" if "ffn_down" in name and ".1." in name else "F32")
    toy_gguf.finish(writer)
    file = open_gguf(path)
    with pytest.raises(
        WeightsError, match=r"tensor blk\.1\.ffn_down\.weight: is stored as MXFP4; we read F32, F16, BF16, .*Q4_K, Q5_K, Q6_K"
    ):
        file.tensor("blk.1.ffn_down.weight", (64, 96))


def test_unknown_architecture(tmp_path: Path) -> None:
    writer = GGUFWriter(path := tmp_path / "toy.gguf", "mamba")
    toy_gguf.finish(writer)
    assert "architecture 'mamba' is unknown; we run: llama, qwen2, qwen2moe, qwen3, qwen3moe, gemma2, gemma3" in str(refused(path))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope__scaling__type", "longer"),
        ("rope__scaling__original_context_length", 512),
        ("rope__scaling__yarn_log_multiplier", 0.1),
        ("rope__scale_linear", 2.0),
        ("rope__dimension_count_swa", 8),
        ("attention__sliding_window", 128),
        ("attention__value_length", 32),
        ("expert_used_count", 8),
        ("a_key_of_next_year", 1),
    ],
)
def test_what_is_not_honoured_is_refused(tmp_path: Path, key: str, value: str | float) -> None:
    assert f"llama.{key.replace('__', '.')} = {value!r}" in str(refused(toy_with(tmp_path / "toy.gguf", **{key: value})))


def test_rope_scalings(tmp_path: Path) -> None:
    def rope(**keys: str | float) -> Rope:
        return open_gguf(toy_with(tmp_path / "toy.gguf", **keys)).config.rope

    assert rope(rope__scaling__type="linear", rope__scaling__factor=4.0) == Rope(10000.0, Linear(4.0))
    assert rope(rope__scaling__factor=4.0) == Rope(10000.0, Linear(4.0))
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 512}
    assert rope(**yarn) == Rope(10000.0, Yarn(4.0, 512, yarn_attention(4.0)))
    assert rope(**yarn, rope__scaling__attn_factor=0.5).scaling.attention == 0.5 * yarn_attention(4.0)
    with pytest.raises(WeightsError, match=r"llama\.rope\.scaling\.factor is missing"):
        rope(rope__scaling__type="linear")


def toy_with_divisors(path: Path, values: np.ndarray) -> Path:
    writer = GGUFWriter(path, "llama")
    toy_gguf.add_keys(writer)
    for known, stored in toy_gguf.tensors():
        toy_gguf.add_tensor(writer, known, stored, "F32")
    toy_gguf.add_tensor(writer, "rope_freqs.weight", values.astype(np.float32), "F32")
    toy_gguf.finish(writer)
    return path


def test_rope_divisors_are_a_tensor(tmp_path: Path) -> None:
    config = open_gguf(toy_with_divisors(tmp_path / "toy.gguf", np.arange(1, 9))).config
    assert config.rope == Rope(10000.0, Divided((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)))
    for wrong in (np.ones(7), np.zeros(8)):
        assert refused(toy_with_divisors(tmp_path / "wrong.gguf", wrong)).tensor == "rope_freqs.weight"


def test_neutral_keys_are_accepted(tmp_path: Path) -> None:
    path = toy_with(tmp_path / "toy.gguf", rope__scaling__type="none", rope__scaling__factor=1.0, expert_count=0, attention__key_length=16)
    assert open_gguf(path).config.head_dim == 16


@pytest.mark.parametrize("name", ["rope_factors_long.weight", "blk.0.attn_q.bias", "blk.2.attn_q.weight", "blk.0.attn_q_norm.weight"])
def test_tensors_that_would_be_ignored_are_refused(tmp_path: Path, name: str) -> None:
    writer = GGUFWriter(path := tmp_path / "toy.gguf", "llama")
    toy_gguf.add_keys(writer)
    for known, values in toy_gguf.tensors():
        toy_gguf.add_tensor(writer, known, values, "F32")
    toy_gguf.add_tensor(writer, name, np.zeros(32, np.float32), "F32")
    toy_gguf.finish(writer)
    assert refused(path).tensor == name
