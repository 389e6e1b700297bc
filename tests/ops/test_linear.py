"""linear on weights in their stored precision: layout, arithmetic, bits, and what comes in badly."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pytest
import torch
from kquants import K_KINDS, decode, encode
from op_bits import ISAS, assert_rows_stand_alone, assert_same_bits, each_isa

from pitstop.errors import Unsupported
from pitstop.models.weights.tensor import RawTensor
from pitstop.ops import dispatch
from pitstop.ops.linear import PackedLinear, linear, pack, pack_int8, pack_stored, packing, ref, rows

QUANTIZED = {
    "Q4_0": "q4",
    "Q4_1": "q4",
    "Q5_0": "q5",
    "Q5_1": "q5",
    "Q8_0": "q8",
    "Q4_F": "q4f",
    "Q4_K": "q4k",
    "Q5_K": "q5k",
    "Q6_K": "q6k",
    "int8": "int8",
}
"""From how a matrix is stored to what it becomes."""
PRECISIONS = ("int16", "int8", "fp32")
SHAPES = [(1, 1, 32), (2, 16, 64), (3, 33, 96), (4, 17, 576), (5, 47, 160), (13, 96, 320), (97, 70, 64), (200, 31, 1536)]


def shaped(kind: str, *sizes: int) -> tuple[int, ...]:
    """The sizes with the last one, the width, at least 256 and a multiple of that where the kind's blocks are so wide."""
    return (*sizes[:-1], -(-sizes[-1] // 256) * 256) if kind in K_KINDS else sizes


@dataclass
class Matrix:
    """As a model file holds one."""

    kind: str
    shape: tuple[int, int]
    data: np.ndarray

    def dequantize(self) -> np.ndarray:
        if self.kind == "Q4_F":
            return RawTensor("", self.kind, self.shape, self.data).dequantize()
        return decode(self.kind, self.data, self.shape)


def stored(kind: str, weight: torch.Tensor) -> Matrix:
    if kind == "Q4_F":  # Q4_1 with numbers that fp16 cannot hold
        halves = encode("Q4_1", weight.numpy()).reshape(-1, 20)
        numbers = halves[:, :4].copy().view(np.float16).astype(np.float32) * np.float32(1.0003)
        data = np.concatenate([numbers.view(np.uint8), halves[:, 4:]], axis=1).reshape(len(weight), -1)
    else:
        data = encode(kind, weight.numpy())
    return Matrix(kind, tuple(weight.shape), data)


def packed(kind: str, weight: torch.Tensor, activations: str = "int16") -> tuple[PackedLinear, torch.Tensor]:
    """The weight packed from `kind`, and the values it then has."""
    if kind == "int8":
        scales = weight.abs().amax(dim=1) / 127
        values = (weight / scales[:, None]).round().to(torch.int8)
        return pack_int8(values, scales, activations), values * scales[:, None]
    matrix = stored(kind, weight)
    return pack_stored([matrix], "cpu", activations), torch.from_numpy(matrix.dequantize())


def magnitude(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Σ|x|·|scale · integer| + |x|·|minimum|, which rounding errors are proportional to: below Σ|x|·3·(largest |w| of the group)."""
    largest = weight.abs().unflatten(1, (-1, 32)).amax(dim=2, keepdim=True).expand(-1, -1, 32).flatten(1)
    return 3 * x.abs().double() @ largest.double().T


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantised_products(kind, precision, shape):
    """Against fp64, once with the activations rounded alike (what is left is fp32 rounding), once as they were."""
    count, out_features, in_features = shaped(kind, *shape)
    x, weight = ref.make_inputs(count, count, out_features, in_features)
    matrix, values = packed(kind, weight, precision)
    levels = ref.LEVELS.get(precision)
    near = ref.rounded(x, levels) if levels else x
    chain = in_features if precision == "fp32" else 4 * in_features / 32  # roundings of one output
    rounding = ref.TOLERANCE * chain**0.5 * 2**-24 * magnitude(x, values)
    step = x.abs().unflatten(1, (-1, 32)).amax(dim=2, keepdim=True).expand(-1, -1, 32).flatten(1).double() / levels if levels else 0 * x
    moved = 0.5 * step.double() @ values.abs().double().T
    for isa in ISAS:
        dispatch.native.set_isa(isa)
        y = linear(x, matrix).double()
        assert ((y - near.double() @ values.double().T).abs() <= rounding).all(), isa
        assert ((y - x.double() @ values.double().T).abs() <= rounding + 1.001 * moved).all(), isa
    with dispatch.use("ref"):
        y = linear(x, matrix).double()
    assert ((y - near.double() @ values.double().T).abs() <= 4 * in_features**0.5 * 2**-24 * magnitude(x, values)).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_products(dtype, shape):
    """The same chain of fused multiply-adds as fp32 weights of the same values: equal to the bit."""
    x, weight = ref.make_inputs(shape[0], *shape)
    weight = weight.to(dtype)
    for isa in ISAS:
        dispatch.native.set_isa(isa)
        assert_same_bits(linear(x, pack(weight)), linear(x, pack(weight.float())))
    with dispatch.use("ref"):
        assert_same_bits(linear(x, pack(weight)), linear(x, pack(weight.float())))


@pytest.mark.parametrize("shape", [(1, 32), (16, 64), (37, 96), (130, 576)], ids=str)
@pytest.mark.parametrize("kind", [*QUANTIZED, "F16", "BF16"])
def test_packing_loses_nothing(kind, shape):
    shape = shaped(kind, *shape)
    matrix, values = packed(kind, torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    assert matrix.kind == QUANTIZED.get(kind, kind.lower())
    assert torch.equal(ref.dequantize(matrix), values)
    ids = torch.tensor([shape[0] - 1, 0, shape[0] // 2, 0])
    many = torch.randint(shape[0], (300,), generator=torch.Generator().manual_seed(2))  # as many as are shared among threads
    for isa in ISAS:
        dispatch.native.set_isa(isa)
        assert torch.equal(rows(matrix, ids), values[ids])
        assert torch.equal(rows(matrix, many), values[many])
        assert torch.equal(rows(matrix, ids, 0.7), values[ids] * 0.7)
    with dispatch.use("ref"):
        assert torch.equal(rows(matrix, ids), values[ids])
        assert torch.equal(rows(matrix, ids, 0.7), values[ids] * 0.7)
    with pytest.raises(IndexError):
        rows(matrix, torch.tensor([shape[0]]))
    with pytest.raises(IndexError):
        rows(matrix, torch.tensor([0, -1]))


@pytest.mark.parametrize(("kind", "size", "limit"), [("Q4_0", 18, 8192), ("Q5_0", 22, 4096)])
def test_every_scale_without_a_minimum_keeps_its_values(kind, size, limit):
    """All finite fp16 scales: the minimum -8 (or -16) · scale is exact, or the matrix is kept in fp32."""
    scales = np.arange(1 << 16, dtype=np.uint16)
    scales = scales[(scales & 0x7C00) != 0x7C00].view(np.float16)
    for part, expected in ((scales[np.abs(scales) < limit], QUANTIZED[kind]), (scales[np.abs(scales) >= limit], "panels")):
        blocks = np.empty((len(part), size), np.uint8)
        blocks[:, :2] = part.view(np.uint8).reshape(-1, 2)
        blocks[:, 2:] = np.random.default_rng(0).integers(0, 256, (len(part), size - 2))
        matrix = Matrix(kind, (len(part), 32), blocks)
        found = pack_stored([matrix], "cpu")
        assert found.kind == expected
        assert torch.equal(ref.dequantize(found), torch.from_numpy(matrix.dequantize()))


@pytest.mark.parametrize("kind", K_KINDS)
def test_every_number_of_nested_blocks_keeps_its_values(kind):
    """All finite fp16 factors, subnormal ones too, with random numbers: fp32 holds their products and the weights."""
    factors = np.arange(1 << 16, dtype=np.uint16)
    factors = factors[(factors & 0x7C00) != 0x7C00]
    blocks = encode(kind, np.empty((len(factors), 256), np.float32))
    blocks[:, 208:] = factors[:, None].view(np.uint8) if kind == "Q6_K" else blocks[:, 208:]
    if kind != "Q6_K":
        blocks[:, :2] = factors[:, None].view(np.uint8)
        blocks[:, 2:4] = np.random.default_rng(0).permutation(factors)[:, None].view(np.uint8)
    matrix = Matrix(kind, (len(factors), 256), blocks)
    found = pack_stored([matrix], "cpu")
    assert found.kind == QUANTIZED[kind]
    assert torch.equal(ref.dequantize(found), torch.from_numpy(matrix.dequantize()))


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("Q4_1", "Q4_0", "Q4_1"), "q4"),
        (("Q8_0", "Q8_0"), "q8"),
        (("F16", "F16"), "f16"),
        (("Q4_1", "Q8_0"), "q4 q8"),
        (("Q4_K", "Q4_K", "Q6_K"), "q4k q6k"),
        (("Q5_K", "Q4_K", "Q5_K"), "q5k q4k q5k"),
        (("F16", "Q4_0"), "panels"),
    ],
    ids=str,
)
def test_stacked_parts(kinds, expected):
    """By rows, also where a part ends within a panel; neighbours of one kind together; with floating-point ones they become fp32."""
    torch.manual_seed(len(kinds))  # the rounding of activations to 16 bits reaches the tolerance in one draw of a thousand
    parts = [stored(kind, torch.randn(10 + 13 * i, 256)) for i, kind in enumerate(kinds)]
    matrix = pack_stored(parts, "cpu")
    weight = torch.cat([torch.from_numpy(part.dequantize()) for part in parts])
    assert torch.equal(ref.dequantize(matrix), weight)
    assert " ".join(part.kind for part in matrix.parts or (matrix,)) == expected
    bias = torch.randn(len(weight))
    matrix = replace(matrix, bias=bias)
    x = torch.randn(3, 256)
    for backend in ("cpu", "ref"):
        with dispatch.use(backend):
            torch.testing.assert_close(linear(x, matrix), x @ weight.T + bias, rtol=1e-3, atol=1e-3)
    each_isa(lambda: linear(x, matrix))
    for part, first in zip(matrix.parts, accumulate((part.out_features for part in matrix.parts), initial=0), strict=False):
        columns = slice(first, first + part.out_features)
        assert_same_bits(linear(x, matrix)[:, columns], linear(x, part) + bias[columns])


LAID_OUT = {
    "Q4_0": "59c3cf86e0f762c0",
    "Q4_1": "2b021d1b2c12618f",
    "Q5_0": "bd6b92820a9def44",
    "Q5_1": "39f5c13abb320c8c",
    "Q8_0": "b0cbab5c593bc5ad",
    "Q4_F": "f8c0f1715835cd06",
    "Q4_K": "0bd54f2547de7241",
    "Q5_K": "e43a5c5809cb4065",
    "Q6_K": "9ac1221fb3514006",
    "int8": "cf3578ff2fa7ea39",
    "F16": "88e0c24f5d7c57ad",
    "BF16": "72604757b9f0edc3",
    "F32": "8718907e5bf97da0",
}
"""sha256 of a matrix as it lies in memory, the first half."""


@pytest.mark.parametrize("kind", LAID_OUT)
def test_a_layout_that_changes_is_a_new_one(kind):
    """Files of packed weights (models/packed.py) outlive an installation: whoever changes this raises packing.LAYOUT."""
    weight = torch.from_numpy(np.random.default_rng(1).standard_normal((20, 512), np.float32))
    found = pack(weight) if kind == "F32" else packed(kind, weight)[0]
    assert packing.LAYOUT == 1
    assert hashlib.sha256(found.data.view(-1).view(torch.uint8).numpy()).hexdigest()[:16] == LAID_OUT[kind]


def test_the_reference_backend_packs_fp32():
    with dispatch.use("ref"):
        assert pack_stored([stored("Q4_1", torch.randn(20, 64))], "cpu").kind == "panels"


CASES = [(kind, precision) for kind in QUANTIZED for precision in PRECISIONS] + [("F16", "int16"), ("BF16", "int16")]


@pytest.mark.parametrize(("kind", "precision"), CASES)
def test_bits_do_not_depend_on_company_or_threads(kind, precision):
    x, weight = ref.make_inputs(8, 256, *shaped(kind, 150, 320))
    matrix, _ = packed(kind, weight, precision)
    assert_rows_stand_alone(lambda part: linear(part, matrix), x)
    whole = linear(x, matrix)
    for count in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 32, 95, 96, 97, 128, 193):
        for first in (0, 1, 256 - count):
            assert_same_bits(linear(x[first : first + count], matrix), whole[first : first + count])


@pytest.mark.parametrize(("kind", "precision"), CASES)
def test_instruction_sets_agree(kind, precision):
    x, weight = ref.make_inputs(9, 50, *shaped(kind, 40, 160))
    matrix, _ = packed(kind, weight, precision)
    for count in (1, 3, 4, 5, 13, 50):
        each_isa(lambda count=count: linear(x[:count], matrix))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_extreme_activations(kind, precision):
    weight = torch.randn(shaped(kind, 40, 96))
    matrix, values = packed(kind, weight, precision)
    width = weight.shape[1]
    x = torch.zeros(7, width)
    x[1, 40] = 24000.0
    x[1, 41:] = 1e-3
    x[2] = 1e-42  # denormal
    x[3] = torch.randn(width) * 1e30
    x[4, 50] = torch.inf
    x[5, -1] = torch.nan
    x[6] = torch.randn(width) * 2.0**-90
    for isa in ISAS:
        dispatch.native.set_isa(isa)
        for y in (linear(x, matrix), torch.cat([linear(row[None], matrix) for row in x])):
            assert (y[0] == 0).all()
            assert (y[2].abs() <= 1e-39).all()
            assert y[5].isnan().all()
            assert y[4].isnan().all() or (precision == "fp32" and not y[4].isfinite().any())
            for row in (1, 3, 6):
                bound = (0.01 if precision == "int8" else 3e-4) * x[row].abs().max().double() * values.abs().sum(dim=1).double()
                assert ((y[row].double() - values.double() @ x[row].double()).abs() <= bound).all()


def largest_codes(kind: str, sign: float) -> tuple[PackedLinear, torch.Tensor]:
    """Blocks of which every code and number is the largest, or (for q6k, sign -1) the smallest code."""
    blocks = np.full((20, K_KINDS[kind]), 255, np.uint8)
    at = 208 if kind == "Q6_K" else 0
    blocks[:, at : at + 2] = np.full((20, 1), 0.01, np.float16).view(np.uint8)
    if kind == "Q6_K":
        blocks[:, 192:208] = 128
        blocks[:, :192] = 255 if sign > 0 else 0
    else:
        blocks[:, 2:4] = 0
    matrix = Matrix(kind, (20, 256), blocks)
    return pack_stored([matrix], "cpu"), torch.from_numpy(matrix.dequantize())


@pytest.mark.parametrize("kind", QUANTIZED)
def test_the_largest_integers_do_not_overflow(kind):
    """Every activation at the top of its range, every weight at the end of its own."""
    for sign in (1.0, -1.0):
        weight = torch.full(shaped(kind, 20, 64), sign)
        weight[:, ::32] = 0 if kind in ("Q4_1", "Q5_1") else -sign
        matrix, values = packed(kind, weight)
        if kind in K_KINDS:
            matrix, values = largest_codes(kind, sign)
        width = matrix.in_features
        x = torch.full((6, width), 3.0)
        x[0], x[4] = -3.0, -3.0
        for precision in ("int16", "int8"):
            coarse = PackedLinear(matrix.kind, 20, width, matrix.data, precision)
            for isa in ISAS:
                dispatch.native.set_isa(isa)
                for part in (x, x[:2], torch.cat([x, x])):
                    torch.testing.assert_close(linear(part, coarse).double(), part.double() @ values.double().T, rtol=1e-6, atol=0)


def test_a_slice_of_columns_is_as_good_as_a_copy():
    x, weight = ref.make_inputs(4, 9, 40, 96)
    matrix, _ = packed("Q4_1", weight)
    wide = torch.cat([torch.full_like(x, torch.nan), x, torch.full_like(x, torch.nan)], dim=1)
    assert_same_bits(linear(wide[:, 96:192], matrix), linear(x, matrix))
    assert linear(x[:0], matrix).shape == (0, 40)


def test_pack_int8_refuses_what_it_cannot_hold():
    with pytest.raises(Unsupported, match="multiple of 32"):
        pack_int8(torch.zeros(4, 33, dtype=torch.int8), torch.ones(4))
    with pytest.raises(Unsupported, match="int8"):
        pack_int8(torch.zeros(4, 32), torch.ones(4))
    with pytest.raises(Unsupported, match="int8"):
        pack_int8(torch.zeros(4, 32, dtype=torch.int8), torch.ones(5))


def test_the_reference_rounds_activations_as_the_kernels_do() -> None:
    """Values in the middle between two levels, where one rounding more of the factor shows. A column of the unit matrix gives them back."""
    generator = torch.Generator().manual_seed(0)
    largest = torch.rand(4000, 1, generator=generator) * 10 + 0.1
    steps = torch.randint(-32767, 32767, (4000, 32), generator=generator) + 0.5
    x = (steps * (largest / 32767)).clamp(-largest, largest)
    x[:, 0] = largest[:, 0]
    unit = pack_int8(torch.eye(32, dtype=torch.int8), torch.ones(32))
    assert torch.equal(linear(x, unit), ref.rounded(x, 32767))
