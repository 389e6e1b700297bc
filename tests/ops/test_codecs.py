"""Codecs by name and option: what there is, what is refused and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pitstop import codecs
from pitstop.cli.options import KV_HELP
from pitstop.errors import ConfigError
from pitstop.kv.capacity import bits_per_value
from pitstop.ops.attention import Plane
from pitstop.types import SEGMENT, KVShape

SMOLLM2 = KVShape(layers=30, kv_heads=3, head_dim=64)


def refusal(spec: str, head_dim: int, kv_heads: int = 3) -> str | None:
    return codecs.get(spec).supports(KVShape(layers=1, kv_heads=kv_heads, head_dim=head_dim), "cpu")


@pytest.mark.parametrize("name", codecs.names())
def test_every_codec_serves_the_default_model_and_keeps_its_page(name):
    codec = codecs.get(name)
    assert codec.name == name
    assert codec.supports(SMOLLM2, "cpu") is None
    page = torch.zeros(codec.page_bytes(SMOLLM2), dtype=torch.uint8)
    keys, values = codec.decode(page if codec.lead_pages else None, page, SMOLLM2)
    assert keys.shape == values.shape == (3, SEGMENT, 64)


def test_an_unknown_codec_lists_the_others():
    with pytest.raises(ConfigError, match=r"--kv int5: choose one of raw16, raw32, int8, .*adaptive8, delta8, delta8-open$"):
        codecs.get("int5")
    with pytest.raises(ConfigError, match="--kv nope:keys=4: choose one of"):
        codecs.get("nope:keys=4")


def test_options_change_what_they_name_only():
    codec, plain = codecs.get("int4:keys=5,lead=0,rotate=keys"), codecs.get("int4")
    assert (codec.layout.keys, codec.layout.values) == (Plane(5, "channel"), plain.layout.values)
    assert (codec.lead_pages, codec.rotated) == (0, "keys")
    assert codec.name == "int4:keys=5,lead=0,rotate=keys"
    assert codecs.get("int8:values=4").page_bytes(SMOLLM2) < codecs.get("int8").page_bytes(SMOLLM2)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("int4:", "'' is no option; there are keys=BITS, values=BITS, lead=BITS"),
        ("int4:key=5", "'key=5' is no option"),
        ("int4:keys", "'keys' is no option"),
        ("int4:keys=5,keys=4", "'keys=4' is given twice"),
        ("int4:keys=five", "keys=five is no number of bits"),
        ("int4:keys=-4", "keys=-4 is no number of bits"),
        ("int4:keys=9", "a plane has 2 to 8 bits"),
        ("int4:lead=1", "a plane has 2 to 8 bits"),
        ("int4:rotate=values", "rotate=values is none of none, keys, both"),
        ("int4:segment=64", "'segment=64' is no option"),
        ("raw16:keys=8", "8 bits do not go with ranges 'none'"),
        ("delta8:values=4", "differences have 8 bits"),
    ],
)
def test_wrong_options_say_what_is_wrong(spec, why):
    with pytest.raises(ConfigError, match=f"--kv {spec}: {why}"):
        codecs.get(spec)


@pytest.mark.parametrize("name", ["raw16", "raw32", "int8", "adaptive8", "delta8", "delta8-open"])
@pytest.mark.parametrize("head_dim", [1, 16, 48, 80, 128])
def test_whole_bytes_go_with_any_head_dimension(name, head_dim):
    assert refusal(name, head_dim) is None


@pytest.mark.parametrize("head_dim", [16, 48, 80])
def test_codes_of_four_bits_need_blocks_of_32_channels(head_dim):
    assert (
        refusal("int4:rotate=none", head_dim)
        == f"its codes lie in blocks of 32 channels, which do not divide a head dimension of {head_dim}"
    )
    assert refusal("int4:rotate=none", 96) is None


def test_codes_of_two_bits_need_blocks_of_64_channels():
    assert refusal("int4:rotate=none,values=3", 96) == "its codes lie in blocks of 64 channels, which do not divide a head dimension of 96"
    assert refusal("int4:rotate=none,values=3,lead=6", 128) is None


def test_a_rotation_needs_a_power_of_two():
    for rotated in ("keys", "both"):
        assert refusal(f"int4:rotate={rotated}", 96) == "its rotation needs a head dimension that is a power of two, not 96"


def test_a_first_segment_must_fit_into_two_pages():
    assert "the first segment at 8 bits takes" in refusal("int4:keys=3,values=3", 64)
    assert refusal("int4:keys=3,values=3,lead=6", 64) is None


@pytest.mark.parametrize("name", codecs.names())
def test_the_help_names_every_codec(name):
    assert re.search(rf"^(.*, )?{name}[,:]", KV_HELP, re.MULTILINE)


def test_the_bits_in_the_docs_are_those_allocated():
    table = (Path(__file__).parents[2] / "docs" / "kv.md").read_text()
    table = table[table.index("| `--kv` | bits a value at 8K / 32K") :].split("\n\n")[0]
    rows = re.findall(r"^\| `(\S+)` \| ([\d.]+) / ([\d.]+) \|", table, re.MULTILINE)
    assert {name for name, *_ in rows} == {*codecs.names()} - {"raw32"}
    for name, *bits in rows:
        assert bits == [f"{bits_per_value(codecs.get(name), SMOLLM2, length):.2f}" for length in (8192, 32768)], name


def test_the_bars_for_bits():
    """At most 8.7 bits a value at 8K for the 8-bit tier; 4.7 at 8K and 4.45 at 32K for the 4-bit tier."""
    bits = {(name, length): bits_per_value(codecs.get(name), SMOLLM2, length) for name in ("int8", "int4") for length in (8192, 32768)}
    assert bits["int8", 8192] <= 8.7
    assert bits["int4", 8192] <= 4.7
    assert bits["int4", 32768] <= 4.45
