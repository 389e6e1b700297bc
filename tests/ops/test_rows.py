"""linear, rms_norm, silu_mul and rotate: native against reference, and the bits of a row in any company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from op_bits import BACKENDS, ISAS, assert_rows_stand_alone, assert_same_bits, each_isa, frequencies

from pitstop.errors import Unsupported
from pitstop.ops import activation, dispatch, linear, norm, rope
from pitstop.ops.activation import ref as activation_ref
from pitstop.ops.linear import ref as linear_ref
from pitstop.ops.norm import ref as norm_ref
from pitstop.ops.rope import ref as rope_ref

LINEAR_SHAPES = [(1, 1, 1), (3, 16, 7), (5, 33, 64), (12, 17, 1), (13, 48, 100), (25, 130, 576), (97, 31, 257), (200, 80, 33)]


def check_linear(rows: int, out_features: int, in_features: int) -> None:
    x, weight = linear_ref.make_inputs(rows, rows, out_features, in_features)
    y = linear.linear(x, linear.pack(weight)).double()
    exact = x.double() @ weight.double().T
    bound = linear_ref.TOLERANCE * in_features**0.5 * 2**-24 * (x.abs().double() @ weight.abs().double().T)
    assert ((y - exact).abs() <= bound).all(), float(((y - exact).abs() / bound).max())


@pytest.mark.parametrize("shape", LINEAR_SHAPES, ids=str)
@pytest.mark.parametrize("isa", ISAS)
def test_linear_native(isa, shape):
    dispatch.use("cpu")
    dispatch.native.set_isa(isa)
    check_linear(*shape)


@pytest.mark.parametrize("shape", LINEAR_SHAPES, ids=str)
def test_linear_reference(shape):
    dispatch.use("ref")
    check_linear(*shape)


def test_linear_is_one_chain_of_fused_multiply_adds():
    x, weight = linear_ref.make_inputs(7, 2, 5, 40)
    expected = torch.zeros(2, 5)
    for k in range(40):  # in fp64 a product of fp32 is exact; rounding the sum to fp32 once more is wrong too rarely to matter here
        expected = (x[:, k : k + 1].double() * weight[:, k].double() + expected.double()).float()
    with dispatch.use("cpu"):
        assert_same_bits(linear.linear(x, linear.pack(weight)), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_rows_come_back_exactly(backend):
    dispatch.use(backend)
    weight = torch.randn(37, 19)
    ids = torch.tensor([36, 0, 15, 16, 36])
    assert_same_bits(linear.rows(linear.pack(weight), ids), weight[ids])


def test_pack_refuses_what_it_cannot_hold():
    with pytest.raises(Unsupported, match="float32 matrix"):
        linear.pack(torch.randn(4, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"\[rows, 8\]"):
        linear.linear(torch.randn(2, 7), linear.pack(torch.randn(3, 8)))


@pytest.mark.parametrize("width", [1, 15, 16, 17, 576, 1000])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rms_norm(backend, width):
    x, weight = norm_ref.make_inputs(width, 6, width)
    x[5] = 0
    exact = x.double() / (x.double().square().mean(dim=1, keepdim=True) + 1e-5).sqrt() * weight
    with dispatch.use(backend):
        y = norm.rms_norm(x, weight, 1e-5)
    assert ((y - exact).abs() <= norm_ref.TOLERANCE * exact.abs()).all()


@pytest.mark.parametrize("width", [1, 17, 576])
@pytest.mark.parametrize("backend", BACKENDS)
def test_add_rms_norm_is_a_sum_and_its_norm(backend, width):
    x, weight = norm_ref.make_inputs(width, 6, width)
    y = torch.randn(6, width, generator=torch.Generator().manual_seed(width))
    with dispatch.use(backend):
        total, out = norm.add_rms_norm(x, y, weight, 1e-5)
        assert torch.equal(total, x + y)
        assert torch.equal(out, norm.rms_norm(x + y, weight, 1e-5))


@pytest.mark.parametrize("features", [1, 15, 16, 33, 1536])
@pytest.mark.parametrize("backend", BACKENDS)
def test_silu_mul(backend, features):
    gate_up = activation_ref.make_inputs(features, 5, features)
    gate, up = gate_up.double().chunk(2, dim=1)
    exact = gate / (1 + torch.exp(-gate)) * up
    with dispatch.use(backend):
        y = activation.silu_mul(gate_up)
    assert ((y - exact).abs() <= activation_ref.TOLERANCE * exact.abs() + 1e-37).all()


@pytest.mark.parametrize("features", [1, 15, 16, 33, 1536])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gelu_tanh_mul(backend, features):
    gate_up = activation_ref.make_inputs(features, 5, features)
    gate, up = gate_up.double().chunk(2, dim=1)
    z = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    exact = gate / (1 + torch.exp(-2 * z)) * up
    with dispatch.use(backend):
        y = activation.gelu_tanh_mul(gate_up)
    assert ((y - exact).abs() <= activation_ref.GELU_TOLERANCE * exact.abs() + 1e-37).all()
    torch.testing.assert_close(y, torch.nn.functional.gelu(gate, approximate="tanh").float() * gate_up[:, features:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("features", [1, 15, 16, 33, 1536])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gelu_erf_mul(backend, features):
    gate_up = activation_ref.make_inputs(features, 5, features)
    gate, up = gate_up.double().chunk(2, dim=1)
    exact = gate / 2 * torch.special.erfc(-gate / 2**0.5) * up
    with dispatch.use(backend):
        y = activation.gelu_erf_mul(gate_up)
    assert ((y - exact).abs() <= activation_ref.GELU_ERF_TOLERANCE * exact.abs() + 1e-37).all()
    torch.testing.assert_close(y, torch.nn.functional.gelu(gate).float() * gate_up[:, features:], rtol=1e-5, atol=1e-5)


def test_gelu_tanh_mul_at_the_ends():
    gate = torch.tensor([[-torch.inf, -1e20, -200.0, 0.0, 200.0, 1e30]])
    expected = torch.tensor([[torch.nan, 0.0, 0.0, 0.0, 200.0, 1e30]])
    with dispatch.use("cpu"):
        y = activation.gelu_tanh_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


def test_gelu_erf_mul_all_along():
    """In steps of 2⁻¹¹ from where it has vanished to where nothing is taken from the gate."""
    gate = torch.arange(-26 * 1024, 16 * 1024).view(-1, 64) / 2048
    exact = gate.double() / 2 * torch.special.erfc(-gate.double() / 2**0.5)
    with dispatch.use("cpu"):
        for isa in ISAS:
            dispatch.native.set_isa(isa)
            y = activation.gelu_erf_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))
            assert ((y - exact).abs() <= activation_ref.GELU_ERF_TOLERANCE * exact.abs() + 1e-37).all(), isa


def test_gelu_erf_mul_at_the_ends():
    gate = torch.tensor([[-torch.inf, -1e20, -200.0, 0.0, 200.0, 1e30, torch.inf, torch.nan]])
    expected = torch.tensor([[torch.nan, 0.0, 0.0, 0.0, 200.0, 1e30, torch.inf, torch.nan]])
    for backend in BACKENDS:
        with dispatch.use(backend):
            y = activation.gelu_erf_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))
        torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("columns", [1, 16, 259])
@pytest.mark.parametrize("backend", BACKENDS)
def test_softcap(backend, columns):
    x = torch.randn(4, columns, generator=torch.Generator().manual_seed(columns)) * 100
    with dispatch.use(backend):
        y = activation.softcap(x, 30.0)
    assert ((y - 30 * torch.tanh(x.double() / 30)).abs() <= activation_ref.CAP_TOLERANCE * 30).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rms_norm_of_heads_is_that_of_each_head(backend):
    x, weight = norm_ref.make_inputs(3, 24, 20)
    with dispatch.use(backend):
        assert torch.equal(norm.rms_norm(x.view(4, 6, 20), weight, 1e-6).flatten(0, 1), norm.rms_norm(x, weight, 1e-6))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_is_added_last(backend):
    x, weight = linear_ref.make_inputs(3, 5, 37, 40)
    packed, bias = linear.pack(weight), torch.linspace(-1, 1, 37)
    with dispatch.use(backend):
        assert torch.equal(linear.linear(x, replace(packed, bias=bias)), linear.linear(x, packed) + bias)


@pytest.mark.parametrize("isa", ISAS)
def test_silu_mul_tails_use_the_arithmetic_of_full_vectors(isa):
    dispatch.native.set_isa(isa)
    gate_up = activation_ref.make_inputs(3, 2, 64)
    whole = activation.silu_mul(gate_up)
    for features in (1, 7, 31, 63):
        part = activation.silu_mul(torch.cat([gate_up[:, :features], gate_up[:, 64 : 64 + features]], dim=1))
        assert_same_bits(part, whole[:, :features])


def test_silu_mul_at_the_ends():
    gate = torch.tensor([[-torch.inf, -1e4, -200.0, 0.0, 200.0, 1e30]])
    expected = torch.tensor([[torch.nan, 0.0, 0.0, 0.0, 200.0, 1e30]])
    with dispatch.use("cpu"):
        y = activation.silu_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [2, 16, 34, 64])
def test_rotate(dim, interleaved):
    cos, sin = rope.tables(300, frequencies(dim, 10000.0))
    x, positions = rope_ref.make_inputs(dim, 9, 3, dim, 300)
    with dispatch.use("ref"):
        expected = rope.rotate(x, positions, cos, sin, interleaved)
    with dispatch.use("cpu"):
        assert_same_bits(rope.rotate(x, positions, cos, sin, interleaved), expected)
    as_complex = x.double().unflatten(2, (-1, 2)) if interleaved else x.double().unflatten(2, (2, -1)).transpose(2, 3)
    turned = torch.view_as_complex(as_complex.contiguous())
    angles = positions.double()[:, None] * 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)
    turned = torch.view_as_real(turned * torch.polar(torch.ones_like(angles), angles)[:, None])
    exact = turned.flatten(2) if interleaved else turned.transpose(2, 3).flatten(2)
    assert (expected - exact).abs().max() < 2e-6


def test_rotate_refuses_positions_outside_the_tables():
    cos, sin = rope.tables(8, frequencies(16, 10000.0))
    x = torch.randn(2, 1, 16)
    for bad in (8, -1):
        with pytest.raises(ValueError, match=rf"positions\[1\] = {bad}"), dispatch.use("cpu"):
            rope.rotate(x, torch.tensor([0, bad], dtype=torch.int32), cos, sin, False)


def test_tables_are_fp64_rounded_once():
    cos, sin = rope.tables(9000, frequencies(64, 130000.0))
    angle = 8999 * 130000.0 ** (-2 * 3 / 64)
    assert cos[8999, 3] == torch.tensor(angle, dtype=torch.float64).cos().float()
    assert sin[8999, 3] == torch.tensor(angle, dtype=torch.float64).sin().float()


COLUMNS = 100
WEIGHT = linear.pack(torch.randn(70, COLUMNS, generator=torch.Generator().manual_seed(1)))
NORM = torch.rand(COLUMNS, generator=torch.Generator().manual_seed(2))
COS, SIN = rope.tables(500, frequencies(20, 10000.0))
OPS = {
    "linear": lambda x: linear.linear(x, WEIGHT),
    "rms_norm": lambda x: norm.rms_norm(x, NORM, 1e-6),
    "add_rms_norm": lambda x: norm.add_rms_norm(x, x.flip(1).contiguous(), NORM, 1e-6)[1],
    "rms_norm of heads": lambda x: norm.rms_norm(x.unflatten(1, (5, 20)), NORM[:20], 1e-6).flatten(1),
    "linear with a bias": lambda x: linear.linear(x, replace(WEIGHT, bias=torch.arange(70.0))),
    "silu_mul": activation.silu_mul,
    "gelu_tanh_mul": activation.gelu_tanh_mul,
    "gelu_erf_mul": activation.gelu_erf_mul,
    "softcap": lambda x: activation.softcap(x, 30.0),
    "rotate": lambda x, p: rope.rotate(x.unflatten(1, (5, 20)), p, COS, SIN, False).flatten(1),
}


def op_inputs(name: str, rows: int) -> list[torch.Tensor]:
    x, _ = linear_ref.make_inputs(5, rows, 1, COLUMNS)
    return [x, torch.arange(rows, dtype=torch.int32)] if name == "rotate" else [x]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPS)
def test_bits_of_a_row_do_not_depend_on_its_company(name, backend):
    dispatch.use(backend)
    assert_rows_stand_alone(OPS[name], *op_inputs(name, 256))


@pytest.mark.parametrize("name", OPS)
def test_instruction_sets_agree(name):
    each_isa(lambda: OPS[name](*op_inputs(name, 50)))


@pytest.mark.parametrize("name", OPS)
def test_a_slice_of_columns_is_as_good_as_a_copy(name):
    x, *rest = op_inputs(name, 9)
    wide = torch.cat([torch.full_like(x, torch.nan), x, torch.full_like(x, torch.nan)], dim=1)
    assert_same_bits(OPS[name](wide[:, COLUMNS : 2 * COLUMNS], *rest), OPS[name](x, *rest))


def test_large_linear_is_split_without_a_trace():
    x, weight = linear_ref.make_inputs(9, 256, 500, 300)
    packed = linear.pack(weight)
    assert_rows_stand_alone(lambda rows: linear.linear(rows, packed), x)


@pytest.mark.parametrize("name", ["silu_mul", "gelu_tanh_mul", "gelu_erf_mul", "softcap"])
def test_many_rows_are_split_without_a_trace(name):
    """Among threads: what the rows above are too few for."""
    assert_rows_stand_alone(OPS[name], activation_ref.make_inputs(9, 100, 400))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPS)
def test_no_rows_give_no_rows(name, backend):
    dispatch.use(backend)
    assert len(OPS[name](*(t[:0] for t in op_inputs(name, 1)))) == 0


def test_a_batch_dependent_reduction_would_be_seen():
    x, weight = linear_ref.make_inputs(3, 64, 40, COLUMNS)

    def planted(rows: torch.Tensor) -> torch.Tensor:
        if len(rows) < 17:
            return linear.linear(rows, linear.pack(weight))
        return linear.linear(rows[:, :50], linear.pack(weight[:, :50])) + linear.linear(rows[:, 50:], linear.pack(weight[:, 50:]))

    with pytest.raises(AssertionError, match="values differ"):
        assert_rows_stand_alone(planted, x)
