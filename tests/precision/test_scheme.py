"""Which matrices are rounded and how, and what is refused by its option's name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pitstop.errors import ConfigError
from pitstop.models.config import ModelConfig, Moe
from pitstop.models.rope import Rope
from pitstop.precision.scheme import Scheme, schemes

DENSE = ModelConfig(
    architecture="llama",
    layers=2,
    width=576,
    heads=9,
    kv_heads=3,
    head_dim=64,
    ffn=1536,
    vocab_size=1000,
    context=2048,
    norm_eps=1e-5,
    rope=Rope(1e4),
    attention_scale=0.125,
    tied_head=False,
)
MIXTURE = replace(DENSE, architecture="qwen2_moe", moe=Moe(experts=4, top_k=2, ffn=96, shared_ffn=192, shared_gate=True))


def test_the_usual_groups_are_the_largest_that_divide() -> None:
    found = schemes(DENSE, 4)
    assert found["blk.1.ffn_down.weight"] == Scheme(4, 128)
    assert {scheme for name, scheme in found.items() if "ffn_down" not in name} == {Scheme(4, 64)}
    assert len(found) == 2 * 7


@pytest.mark.parametrize("config", [DENSE, MIXTURE])
def test_embedding_head_norms_and_routers_stay_whole(config: ModelConfig) -> None:
    found = schemes(config, 8)
    left = {name.split(".")[-2] for name in config.tensors().keys() - found.keys()}
    assert left == {"token_embd", "output", "output_norm", "attn_norm", "ffn_norm"} | (
        {"ffn_gate_inp", "ffn_gate_inp_shexp"} if config.moe else set()
    )
    assert set(found.values()) == {Scheme(8)}


def test_options_reach_every_matrix() -> None:
    assert set(schemes(DENSE, 4, 192, symmetric=False).values()) == {Scheme(4, 192, False)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((3,), r"--bits 3: choose 8 or 4"),
        ((4, 128), r"--group 128 does not divide the 576 inputs of model\.layers\.0\.self_attn\.q_proj\.weight; .*64, 96, 192"),
        ((4, 48), r"--group 48: choose a multiple of 32"),
        ((4, -32), r"--group -32: choose a multiple of 32"),
        ((8, 128), r"--group 128: weights of 8 bits have one scale an output"),
        ((8, 0, False), r"--asymmetric: weights of 8 bits are symmetric"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(options: tuple, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        schemes(DENSE, *options)


def test_odd_widths_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--bits 4: the 600 inputs of .*q_proj.* no multiple of 32; choose --bits 8"):
        schemes(replace(DENSE, width=600), 4)
    with pytest.raises(ConfigError, match=r"--bits 8: .*down_proj\.weight has 1538 inputs"):
        schemes(replace(DENSE, ffn=1538), 8)
