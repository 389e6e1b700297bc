"""The planes of sealed segments: their bytes, what comes back of what was stored, and what does not fit. And Hadamard's basis."""

from __future__ import annotations

import pytest
import torch

from pitstop.ops import dispatch, rope
from pitstop.ops.attention import RAW16, RAW32, Layout, Plane, planes
from pitstop.ops.attention.layout import PARTS
from pitstop.types import SEGMENT

KEYS, VALUES = 2, 1
"""The axis of tokens."""
HALF_ULP = 2**-11
"""Of fp16, relative."""


def tail(seed: int, tokens: int, dim: int = 64, heads: int = 3) -> torch.Tensor:
    """[heads, rows, columns] as in a tail, each channel with an offset of its own, as keys have; fp16."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(heads, SEGMENT, dim, generator=generator) + 4 * torch.randn(heads, 1, dim, generator=generator)
    return (x.transpose(1, 2) if tokens == KEYS else x).contiguous().half()


def stored(x: torch.Tensor, plane: Plane, tokens: int) -> torch.Tensor:
    """x as it comes back, fp64."""
    return planes.decode(planes.encode(x, plane, tokens), plane, tokens, x.shape[3 - tokens])


def bits_a_value(plane: Plane, dim: int) -> float:
    return 8 * plane.bytes(dim) / (SEGMENT * dim)


@pytest.mark.parametrize(
    ("plane", "dim", "bits"),
    [
        (Plane(16), 64, 16),
        (Plane(32), 64, 32),
        (Plane(8, "channel"), 64, 8 + 32 / 128),
        (Plane(8, "token"), 64, 8 + 32 / 64),
        (Plane(4, "channel"), 64, 4 + 32 / 128),
        (Plane(5, "channel"), 128, 5 + 32 / 128),
        (Plane(4, "token"), 128, 4 + 32 / 128),
        (Plane(3, "token"), 64, 3 + 32 / 64),
        (Plane(8, "segment"), 64, 8 + 128 / 8192),  # 4 bytes of range, padded to 16
        (Plane(8, "segment", "closed"), 64, 8 + 8 * (2 + 2 * 64 + 14) / 8192),  # a scale, a token's channels, padding
    ],
    ids=str,
)
def test_bits_a_value(plane, dim, bits):
    assert bits_a_value(plane, dim) == bits
    assert planes.encode(tail(0, KEYS, dim), plane, KEYS).shape[1] * 8 == bits * SEGMENT * dim


def test_where_each_code_lies():
    """The table in layout.py, code by code."""
    codes = torch.arange(64, dtype=torch.uint8).repeat(1, 2, 1)
    data = planes.pack(codes, 4)[0].tolist()
    assert data[:16] == [(j & 15) | (16 + j & 15) << 4 for j in range(16)]
    assert data[16:32] == [(32 + j & 15) | (48 + j & 15) << 4 for j in range(16)]
    twos = planes.pack(codes // 16, 2)[0].tolist()
    assert twos[:16] == [0 | 1 << 2 | 2 << 4 | 3 << 6] * 16
    codes = torch.zeros(1, 1, 32, dtype=torch.uint8)
    codes[0, 0, [0, 9, 31]] = 16  # the fifth bit lies alone, after all low halves
    assert planes.pack(codes, 5)[0, 16:].tolist() == [1, 2, 0, 128]


@pytest.mark.parametrize("bits", PARTS)
def test_codes_come_back(bits):
    codes = torch.randint(0, 2**bits, (3, 64, SEGMENT), dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    data = planes.pack(codes, bits)
    assert data.shape == (3, 64 * SEGMENT * bits // 8)
    assert torch.equal(planes.unpack(data, bits, 64, SEGMENT), codes)


@pytest.mark.parametrize("ranges", ["channel", "token", "segment"])
@pytest.mark.parametrize("tokens", [KEYS, VALUES])
@pytest.mark.parametrize("bits", PARTS)
def test_error_is_half_a_level(bits, tokens, ranges):
    """Within half a scale, and what rounding the range's ends to fp16 costs; and no better than that, so that all levels are used."""
    x = tail(bits, tokens)
    over = {"channel": tokens, "token": 3 - tokens, "segment": (1, 2)}[ranges]
    least, largest = x.double().amin(over, keepdim=True), x.double().amax(over, keepdim=True)
    scale = (largest - least) / (2**bits - 1)
    error = (stored(x, Plane(bits, ranges), tokens) - x.double()).abs()
    assert (error <= scale / 2 + HALF_ULP * (least.abs() + largest - least)).all()
    assert (error / scale).max() > 0.45


@pytest.mark.parametrize("plane", [Plane(4, "channel"), Plane(8, "token"), Plane(8, "segment"), Plane(8, "segment", "closed")], ids=str)
def test_a_constant_comes_back_exactly(plane):
    x = torch.full((2, 64, SEGMENT), -3.140625, dtype=torch.float16)
    assert torch.equal(stored(x, plane, KEYS), x.double())


@pytest.mark.parametrize("plane", [Plane(16), Plane(32)], ids=str)
def test_floating_point_comes_back_exactly(plane):
    x = torch.randn(2, 64, SEGMENT).to(torch.float16 if plane.bits == 16 else torch.float32)
    assert torch.equal(stored(x, plane, KEYS), x.double())


def test_an_outlier_channel_spoils_its_own_range_only():
    """Why keys have a range a channel: the account's one range a segment loses a hundred times more."""
    x = tail(1, KEYS)
    x[:, 5] += 1000
    others = [channel for channel in range(64) if channel != 5]
    ours, theirs = ((stored(x, Plane(8, ranges), KEYS) - x.double())[:, others].abs().max() for ranges in ("channel", "segment"))
    assert theirs > 100 * ours


def delta_errors(coding: str) -> torch.Tensor:
    """Of each value, in scales: [heads, tokens, channels]."""
    x = tail(3, VALUES)
    plane = Plane(8, "segment", coding)
    _, scales, _ = planes.quantize(x.float(), plane, VALUES)
    return (stored(x, plane, VALUES) - x.double()).abs() / scales.double()[:, :, None]


def test_closed_loop_errors_stay_and_open_loop_errors_grow():
    closed, opened = delta_errors("closed"), delta_errors("open")
    assert closed.max() < 0.55  # half a level, and the fp16 of anchor and scale
    assert 0.9 < closed[:, -32:].mean() / closed[:, 32:64].mean() < 1.1
    assert opened[:, -32:].mean() > 2 * opened[:, :32].mean()
    assert opened.max() > 5


@pytest.mark.parametrize("tokens", [KEYS, VALUES])
def test_segments_come_back_with_the_first_one_sharper(tokens):
    layout = Layout(Plane(4, "channel"), Plane(4, "token"), lead=8)
    page_bytes = layout.page_bytes(3, 64)
    both = torch.stack([tail(7, KEYS).flatten(1), tail(8, VALUES).flatten(1)], 1)
    lead, first, other = (torch.full((page_bytes,), 255, dtype=torch.uint8) for _ in range(3))
    planes.seal(both, layout, lead, first)
    planes.seal(both, layout, None, other)
    exact = tail(7, KEYS) if tokens == KEYS else tail(8, VALUES)
    index = 0 if tokens == KEYS else 1
    sharp = planes.unseal(layout, lead, first, 3, 64)[index] - exact.double()
    coarse = planes.unseal(layout, None, other, 3, 64)[index] - exact.double()
    assert 10 < coarse.abs().max() / sharp.abs().max() < 25  # 255 levels against 15


@pytest.mark.parametrize(
    ("keys", "values", "lead", "fits"),
    [(4, 4, 8, True), (8, 4, 8, True), (5, 3, 8, True), (3, 3, 8, False), (3, 3, 6, True), (2, 2, 4, True), (2, 2, 8, False)],
)
def test_whether_a_sharper_first_segment_fits_into_two_pages(keys, values, lead, fits):
    layout = Layout(Plane(keys, "channel"), Plane(values, "token"), lead)
    assert layout.lead_pages == 1
    if fits:
        assert layout.page_bytes(3, 64) == layout.page_bytes(1, 64) * 3
    else:
        with pytest.raises(ValueError, match=f"at {lead} bits takes"):
            layout.page_bytes(3, 64)


def test_planes_that_make_no_sense():
    for bits in (0, 1, 9, 12):
        with pytest.raises(ValueError, match="2 to 8 bits"):
            Plane(bits, "channel")
    with pytest.raises(ValueError, match="do not go with ranges"):
        Plane(8)
    with pytest.raises(ValueError, match="do not go with ranges"):
        Plane(16, "token")
    with pytest.raises(ValueError, match="differences have 8 bits"):
        Plane(4, "segment", "closed")


def test_raw_pages_are_tails():
    for layout, size in ((RAW16, 2), (RAW32, 4)):
        assert layout.page_bytes(3, 64) == 3 * 2 * SEGMENT * 64 * size
        assert layout.lead_pages == 0


@pytest.mark.parametrize("dim", [1, 2, 64, 128])
@pytest.mark.parametrize("backend", ["auto", "ref"])
def test_hadamard_is_orthogonal_and_its_own_inverse(backend, dim):
    x = torch.randn(5, 3, dim, generator=torch.Generator().manual_seed(dim))
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    with dispatch.use(backend):
        turned = rope.hadamard(x)
        assert (rope.hadamard(turned) - x).abs().max() < 2e-6
    assert (turned - x.double() @ matrix / dim**0.5).abs().max() < 2e-6


def test_hadamard_refuses_other_dimensions():
    with pytest.raises(ValueError, match="power of two"):
        rope.hadamard(torch.randn(2, 2, 48))
