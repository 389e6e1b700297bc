"""Which matrices are rounded and how, and what is refused by its option's name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pitstop.errors import ConfigError
from pitstop.models.config import ModelConfig, Moe
from pitstop.models.rope import Rope
from pitstop.precision.scheme import WHOLE_OUTPUT, Scheme, schemes

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
    assert set(found.values()) == {Scheme(8, 32)}


def test_options_reach_every_matrix() -> None:
    assert set(schemes(DENSE, 4, 192, symmetric=False).values()) == {Scheme(4, 192, False)}
    assert set(schemes(DENSE, 8, 64).values()) == {Scheme(8, 64)}
    for bits in (4, 8):
        assert set(schemes(DENSE, bits, WHOLE_OUTPUT).values()) == {Scheme(bits)}


def test_bits_of_a_weight_count_scales_and_zeros() -> None:
    found = [scheme.bits_a_weight(1024) for scheme in (Scheme(8, 32), Scheme(8), Scheme(4, 128), Scheme(4, 64, symmetric=False))]
    assert found == [8.5, 8.015625, 4.125, 4.3125]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((3,), r"--bits 3: choose 8 or 4"),
        ((4, 128), r"--group 128 does not divide the 576 inputs of model\.layers\.0\.self_attn\.q_proj\.weight; .*64, 96, 192"),
        ((4, 48), r"--group 48: choose a multiple of 32"),
        ((4, -32), r"--group -32: choose a multiple of 32"),
        ((8, 128), r"--group 128 does not divide the 576 inputs"),
        ((8, -2), r"--group -2: choose a multiple of 32, like 128, 64, 32, or -1 for one scale an output"),
        ((8, 0, False), r"--asymmetric: weights of 8 bits are symmetric"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(options: tuple, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        schemes(DENSE, *options)


def test_odd_widths_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--bits 4: the 600 inputs of .*q_proj.* no multiple of 32; choose --bits 8"):
        schemes(replace(DENSE, width=600), 4)
    assert schemes(replace(DENSE, width=600), 8)["blk.0.attn_q.weight"] == Scheme(8), "one scale an output, where 32 does not divide"
    for bits, width in ((8, 1538), (4, 1540)):
        with pytest.raises(ConfigError, match=rf"--bits {bits}: .*down_proj\.weight has {width} inputs"):
            schemes(replace(DENSE, ffn=width), bits, WHOLE_OUTPUT)
