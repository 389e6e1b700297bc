"""linear on weights in their stored precision: layout, arithmetic, bits, and what comes in badly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from op_bits import ISAS, assert_rows_stand_alone, assert_same_bits, each_isa

from pitstop.errors import Unsupported
from pitstop.ops import dispatch
from pitstop.ops.linear import PackedLinear, linear, pack, pack_int8, pack_stored, ref, rows

STORED = ("Q4_0", "Q4_1", "Q8_0", "F16", "BF16")
QUANTIZED = ("Q4_0", "Q4_1", "Q8_0", "int8")
PRECISIONS = ("int16", "int8", "fp32")
SHAPES = [(1, 1, 32), (2, 16, 64), (3, 33, 96), (4, 17, 576), (5, 47, 160), (13, 96, 320), (97, 70, 64), (200, 31, 1536)]


@dataclass
class Matrix:
    """As a model file holds one."""

    kind: str
    shape: tuple[int, int]
    data: np.ndarray

    def dequantize(self) -> np.ndarray:
        return dequantize(self.data, GGMLQuantizationType[self.kind]).reshape(self.shape)


def stored(kind: str, weight: torch.Tensor) -> Matrix:
    return Matrix(kind, tuple(weight.shape), quantize(weight.numpy(), GGMLQuantizationType[kind]))


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
    count, out_features, in_features = shape
    x, weight = ref.make_inputs(count, count, out_features, in_features)
    matrix, values = packed(kind, weight, precision)
    levels = ref.LEVELS.get(precision)
    near = ref.rounded(x, levels) if levels else x
    chain = in_features if precision == "fp32" else 3 * in_features / 32  # roundings of one output
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
@pytest.mark.parametrize("kind", [*STORED, "int8"])
def test_packing_loses_nothing(kind, shape):
    matrix, values = packed(kind, torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    expected = {"Q4_0": "q4", "Q4_1": "q4", "Q8_0": "q8", "F16": "f16", "BF16": "bf16", "int8": "int8"}
    assert matrix.kind == expected[kind]
    assert torch.equal(ref.dequantize(matrix), values)
    ids = torch.tensor([shape[0] - 1, 0, shape[0] // 2, 0])
    for isa in ISAS:
        dispatch.native.set_isa(isa)
        assert torch.equal(rows(matrix, ids), values[ids])
    with dispatch.use("ref"):
        assert torch.equal(rows(matrix, ids), values[ids])
    with pytest.raises(IndexError):
        rows(matrix, torch.tensor([shape[0]]))
    with pytest.raises(IndexError):
        rows(matrix, torch.tensor([0, -1]))


def test_every_q4_0_scale_keeps_its_values():
    """All finite fp16 scales: the minimum -8 · scale is exact, or the matrix is kept in fp32."""
    scales = np.arange(1 << 16, dtype=np.uint16)
    scales = scales[(scales & 0x7C00) != 0x7C00].view(np.float16)
    for part, kind in ((scales[np.abs(scales) < 8192], "q4"), (scales[np.abs(scales) >= 8192], "panels")):
        blocks = np.empty((len(part), 18), np.uint8)
        blocks[:, :2] = part.view(np.uint8).reshape(-1, 2)
        blocks[:, 2:] = np.random.default_rng(0).integers(0, 256, (len(part), 16))
        matrix = Matrix("Q4_0", (len(part), 32), blocks)
        found = pack_stored([matrix], "cpu")
        assert found.kind == kind
        assert torch.equal(ref.dequantize(found), torch.from_numpy(matrix.dequantize()))


@pytest.mark.parametrize("kinds", [("Q4_1", "Q4_0", "Q4_1"), ("Q8_0", "Q8_0"), ("F16", "F16"), ("Q4_1", "Q8_0"), ("F16", "Q4_0")], ids=str)
def test_stacked_parts(kinds):
    """By rows, also where a part ends within a panel; parts that share no layout become fp32."""
    parts = [stored(kind, torch.randn(10 + 13 * i, 64)) for i, kind in enumerate(kinds)]
    matrix = pack_stored(parts, "cpu")
    expected = torch.cat([torch.from_numpy(part.dequantize()) for part in parts])
    assert torch.equal(ref.dequantize(matrix), expected)
    assert (matrix.kind == "panels") == (kinds in [("Q4_1", "Q8_0"), ("F16", "Q4_0")])
    x = torch.randn(3, 64)
    torch.testing.assert_close(linear(x, matrix), x @ expected.T, rtol=1e-3, atol=1e-3)


def test_the_reference_backend_packs_fp32():
    with dispatch.use("ref"):
        assert pack_stored([stored("Q4_1", torch.randn(20, 64))], "cpu").kind == "panels"


CASES = [(kind, precision) for kind in QUANTIZED for precision in PRECISIONS] + [("F16", "int16"), ("BF16", "int16")]


@pytest.mark.parametrize(("kind", "precision"), CASES)
def test_bits_do_not_depend_on_company_or_threads(kind, precision):
    x, weight = ref.make_inputs(8, 256, 150, 320)
    matrix, _ = packed(kind, weight, precision)
    assert_rows_stand_alone(lambda part: linear(part, matrix), x)
    whole = linear(x, matrix)
    for count in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 32, 95, 96, 97, 128, 193):
        for first in (0, 1, 256 - count):
            assert_same_bits(linear(x[first : first + count], matrix), whole[first : first + count])


@pytest.mark.parametrize(("kind", "precision"), CASES)
def test_instruction_sets_agree(kind, precision):
    x, weight = ref.make_inputs(9, 50, 40, 160)
    matrix, _ = packed(kind, weight, precision)
    for count in (1, 3, 4, 5, 13, 50):
        each_isa(lambda count=count: linear(x[:count], matrix))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_extreme_activations(kind, precision):
    weight = torch.randn(40, 96)
    matrix, values = packed(kind, weight, precision)
    x = torch.zeros(7, 96)
    x[1, 40] = 24000.0
    x[1, 41:] = 1e-3
    x[2] = 1e-42  # denormal
    x[3] = torch.randn(96) * 1e30
    x[4, 50] = torch.inf
    x[5, 95] = torch.nan
    x[6] = torch.randn(96) * 2.0**-90
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


@pytest.mark.parametrize("kind", QUANTIZED)
def test_the_largest_integers_do_not_overflow(kind):
    """Every activation at the top of its range, every weight at the end of its own."""
    for sign in (1.0, -1.0):
        weight = torch.full((20, 64), sign)
        weight[:, ::32] = 0 if kind == "Q4_1" else -sign
        matrix, values = packed(kind, weight)
        x = torch.full((6, 64), 3.0)
        for precision in ("int16", "int8"):
            coarse = PackedLinear(matrix.kind, 20, 64, matrix.data, precision)
            for isa in ISAS:
                dispatch.native.set_isa(isa)
                for part in (x, x[:2]):
                    torch.testing.assert_close(linear(part, coarse), part @ values.T, rtol=1e-6, atol=0)


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
