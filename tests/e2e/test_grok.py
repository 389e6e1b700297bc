"""Grok-1 and Grok-2 in their published layouts against an independent reference: logits, greedy tokens, answers to the bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from grok_reference import grok1_logits, grok2_logits
from logits import prompt_logits
from servers import model_server
from test_bit_exact import check_matrix
from test_families import LENGTH, MAX_DIFFERENCE, difference, documented, prompt
from tiny_grok import GROK1, GROK2, RANKS, flattened, grok1_leaves, grok1_values, grok2_tensors, write_grok1, write_grok2

from pitstop import LLM, SamplingParams
from pitstop.engine import llm as llm_module
from pitstop.errors import WeightsError
from pitstop.models.families import grok1
from pitstop.models.keys import Keys
from pitstop.models.weights.grok1 import leaves
from pitstop.models.weights.source import open_model
from pitstop.pool.texts import read_model

WRITE = {"grok1": write_grok1, "grok2": write_grok2}
INT16_DIFFERENCE = 1e-4
"""Of logits of 8-bit weights with activations rounded to 16 bits."""

SWITCHES = {
    "grok1": {"norm_topk_prob": True, "router_logit_softcapping": 2.0, "hidden_act": "gelu"},
    "grok2": {"norm_topk_prob": True, "router_logit_softcapping": None, "hidden_act": "gelu", "attn_temperature_after_cap": False},
}
"""What public implementations disagree on, the other way than by default."""

SWITCHED = 3e-6
"""MAX_DIFFERENCE for these: the two forms of GELU differ by 5e-5 here."""

INVISIBLE = {("grok1", "norm_topk_prob")}
"""A factor on all of a row's experts, which the norm behind them takes away."""

FAULTS = {
    "grok1": {"attention_softcap": 0.0, "norms_around": False, "logit_scale": 1.0, "embedding_scale": 1.0, "attention_scale": 0.25},
    "grok2": {"attention_softcap": 0.0, "logit_softcap": 0.0, "temperature_length": 0, "logit_scale": 1.0},
}
"""What a config must not lose: each alone is far outside the tolerance. Those of their experts are the switches."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    root = tmp_path_factory.mktemp("grok")

    def folder(family: str, **changes: object) -> Path:
        path = root / "-".join([family, *changes])
        return path if path.exists() else WRITE[family](path, **changes)

    return folder


def reference_logits(family: str, tokens: list[int], **changes: object) -> np.ndarray:
    if family == "grok1":
        return grok1_logits(grok1_values(), GROK1 | changes, tokens).numpy()
    return grok2_logits(grok2_tensors(), GROK2 | changes, tokens).numpy()


def exact(folder: Path, **options) -> LLM:
    return LLM(folder, codec="raw32", **({"activations": "fp32"} | options))


@pytest.mark.parametrize("family", WRITE)
def test_logits_match(folders, family: str) -> None:
    found = difference(prompt_logits(exact(folders(family)), prompt()), reference_logits(family, prompt()))
    print(f"{family}: max difference of logits {found:.1e} of the largest")
    assert found <= documented()[family][1] <= MAX_DIFFERENCE


def test_8_bit_weights_stay_in_8_bits(folders) -> None:
    """With rounded activations as they are served. The median: two experts may be so close that another is taken at some positions."""
    tokens = prompt()[:140]
    ours, expected = prompt_logits(LLM(folders("grok1"), codec="raw32"), tokens), reference_logits("grok1", tokens)
    found = np.median(np.abs(ours - expected).max(axis=1)) / np.abs(expected).max()
    print(f"grok1, activations of 16 bits: {found:.1e}")
    assert found < INT16_DIFFERENCE
    kinds = {block.feed_forward.experts.gate_up[0].kind for block in LLM(folders("grok1")).engine._runner._model._blocks}
    assert kinds == {"int8"}


@pytest.mark.parametrize(("family", "key"), [(family, key) for family, keys in SWITCHES.items() for key in keys])
def test_each_disagreement_is_a_switch(folders, family: str, key: str) -> None:
    change = {key: SWITCHES[family][key]}
    tokens = prompt()[:60]
    ours = prompt_logits(exact(folders(family, **change)), tokens)
    assert difference(ours, reference_logits(family, tokens, **change)) <= SWITCHED
    assert (difference(ours, reference_logits(family, tokens)) > 10 * SWITCHED) is ((family, key) not in INVISIBLE)


@pytest.mark.parametrize(("family", "field"), [(family, field) for family, faults in FAULTS.items() for field in faults])
def test_a_planted_fault_is_seen(folders, family: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_model(folders(family))
    source.config = replace(source.config, **{field: FAULTS[family][field]})
    monkeypatch.setattr(llm_module, "open_model", lambda path: source)
    tokens = prompt()[:60]
    assert difference(prompt_logits(exact(folders(family)), tokens), reference_logits(family, tokens)) > 50 * MAX_DIFFERENCE


@pytest.mark.parametrize("family", WRITE)
def test_greedy_tokens_match(folders, family: str) -> None:
    """Decoded from the middle of a segment into the next."""
    ours = exact(folders(family)).generate([prompt()], SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True))[0].tokens
    best = reference_logits(family, prompt() + ours)[LENGTH - 1 : -1].argmax(1)
    assert ours == best.tolist()


@pytest.mark.parametrize("family", WRITE)
def test_bits_do_not_depend_on_company(folders, family: str) -> None:
    check_matrix(folders(family), longest=200, count=8, backend="cpu")


def test_grok1_is_served_by_its_own_tokenizer(folders) -> None:
    """As it was published: leaves and tokenizer.model, no chat template."""
    prompt = "  the 人工智能\n[EOS] 🏁"
    expected = LLM(folders("grok1")).generate([prompt], SamplingParams(max_tokens=8, temperature=0.0))[0]
    with model_server(folders("grok1")) as server:
        answer = server.complete(prompt).json()
        assert answer["choices"][0]["text"] == expected.text
        assert answer["usage"]["prompt_tokens"] == 21
        assert "has no chat template" in server.chat("Hello").json()["error"]["message"]


@pytest.mark.slow
def test_grok2_is_served(folders) -> None:
    expected = LLM(folders("grok2")).chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=8, temperature=0.0))
    with model_server(folders("grok2")) as server:
        assert server.chat("Hello").json()["choices"][0]["message"]["content"] == expected.text


@pytest.mark.parametrize("family", WRITE)
def test_the_front_reads_them(folders, family: str) -> None:
    """Without torch, as the server's front does."""
    opened, llm = read_model(str(folders(family))), LLM(folders(family))
    assert opened.context == llm.engine.context
    assert opened.texts.tokenizer.encode("Grüße, 你好") == llm.tokenizer.encode("Grüße, 你好")


# ---- layouts


def test_leaves_are_numbered_as_jax_numbers_them() -> None:
    config = grok1.read(Keys(Path("config.json"), grok1.PUBLISHED | GROK1))
    assert [(leaf.path, leaf.file) for leaf in leaves(config).values()] == [
        (path, f"tensor{number:05d}_000") for number, (path, _) in enumerate(flattened(grok1_leaves()))
    ]


def test_the_published_checkpoint_has_770_leaves() -> None:
    """The first ones and the count are on record."""
    found = list(leaves(grok1.read(Keys(Path("config.json"), grok1.PUBLISHED))).values())
    assert len(found) == 770
    assert [(leaf.path, list(leaf.shape)) for leaf in found[:4]] == [
        ("language_model/in_out_embed/embeddings", [131072, 6144]),
        ("language_model/rms_norm/scale", [6144]),
        ("transformer/decoder_layer_0/moe/linear/w", [8, 6144, 32768]),
        ("transformer/decoder_layer_0/moe/linear_1/w", [8, 32768, 6144]),
    ]


@pytest.fixture
def copy(folders, tmp_path: Path) -> Callable[[str], Path]:
    return lambda family: Path(shutil.copytree(folders(family), tmp_path / family))


def test_a_missing_leaf_is_named(copy) -> None:
    folder = copy("grok1")
    (folder / "ckpt-0" / "tensor00003_000").unlink()
    with pytest.raises(WeightsError, match=r"tensor00003_000.*decoder_layer_0/moe/linear_1/w.*is missing, leaf 00003 of 134"):
        open_model(folder)


def test_leaves_of_other_hosts_are_refused(copy) -> None:
    folder = copy("grok1")
    (folder / "ckpt-0" / "tensor00003_001").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"tensor00003_001.*second host"):
        open_model(folder)


def test_leaves_too_many_are_refused(copy) -> None:
    folder = copy("grok1")
    (folder / "ckpt-0" / "tensor00134_000").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"tensor00134_000.*no part of a checkpoint of 11 layers"):
        open_model(folder)


def test_leaves_in_another_order_are_refused(copy) -> None:
    folder = copy("grok1") / "ckpt-0"
    first, second = folder / "tensor00003_000", folder / "tensor00004_000"
    first.rename(folder / "other"), second.rename(first), (folder / "other").rename(second)
    with pytest.raises(WeightsError, match=r"tensor0000\d_000.*has shape \[4, \d+, \d+\], expected \[4, \d+, \d+\]"):
        LLM(folder.parent)


def test_a_rank_that_is_missing_is_named(copy) -> None:
    folder = copy("grok2")
    (folder / "pytorch_model-00007-TP-001.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"experts\.0\.w2\.weight.*rank 001 is missing"):
        open_model(folder)
    shutil.copy(folder / "pytorch_model-00007-TP-000.safetensors", folder / "pytorch_model-00007-TP-001.safetensors")
    (folder / f"pytorch_model-00007-TP-{RANKS - 1:03d}.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"its 3 parts, the first \[64, 24\], do not make up \[64, 96\]"):
        open_model(folder)


def test_a_tensor_in_two_files_is_refused(copy) -> None:
    folder = copy("grok2")
    shutil.copy(folder / "pytorch_model-00009-TP-common.safetensors", folder / "pytorch_model-00009-TP-000.safetensors")
    with pytest.raises(WeightsError, match=r"k_proj\.weight.*in another file, too"):
        open_model(folder)


@pytest.mark.parametrize(
    ("family", "change", "complaint"),
    [
        ("grok1", {"num_experts_per_token": 2}, "num_experts_per_token = 2 is not honoured"),
        ("grok1", {"num_experts": 5}, "num_experts = 5 differs from num_local_experts = 4"),
        ("grok2", {"rope_type": "yarn_log"}, "rope_type = 'yarn_log' is not honoured yet"),
        ("grok2", {"sliding_window_size": 4096}, "sliding_window_size = 4096 is not honoured yet"),
        ("grok2", {"output_multiplier_scale": None}, "output_multiplier_scale is missing"),
    ],
)
def test_keys_that_change_the_maths_refuse(tmp_path: Path, family: str, change: dict, complaint: str) -> None:
    with pytest.raises(WeightsError, match=complaint):
        open_model(WRITE[family](tmp_path / family, **change))
