"""Mixture of experts: routing and mixing against the definition, bits in any company, and which weights are read."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from op_bits import BACKENDS, assert_rows_stand_alone, assert_same_bits, each_isa

from pitstop.engine.graphs import DecodeGraphs
from pitstop.ops import dispatch, moe
from pitstop.ops.activation import gelu_erf_mul, silu_mul
from pitstop.ops.linear import linear, pack, pack_int8
from pitstop.ops.moe import cpu as moe_cpu
from pitstop.ops.moe import ref as moe_ref

WIDTH, FFN, EXPERTS, TOP = 64, 32, 8, 3


def matrices(seed: int, out_features: int, in_features: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(out_features, in_features, generator=generator) / in_features**0.5 for _ in range(EXPERTS)]


GATE_UP, DOWN = matrices(1, 2 * FFN, WIDTH), matrices(2, WIDTH, FFN)
FLOATING = moe.Experts(tuple(map(pack, GATE_UP)), tuple(map(pack, DOWN)), silu_mul)


def packed_int8(weight: torch.Tensor):
    scales = weight.abs().amax(dim=1) / 127
    return pack_int8((weight / scales[:, None]).round().to(torch.int8), scales)


KINDS = {"floating": FLOATING, "int8": moe.Experts(tuple(map(packed_int8, GATE_UP)), tuple(map(packed_int8, DOWN)), silu_mul)}


def mixture(experts: moe.Experts = FLOATING, renormalise: bool = True):
    return lambda x, logits: moe.mix(x, *moe.route(logits, TOP, renormalise), experts)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_routing_by_the_definition(backend, renormalise):
    """A sort and a softmax, row by row, in Python."""
    _, logits = moe_ref.make_inputs(1, 40, 1, EXPERTS)
    with dispatch.use(backend):
        ids, weights = moe.route(logits, TOP, renormalise)
    for row, chosen, shares in zip(logits.double().tolist(), ids.tolist(), weights.tolist(), strict=True):
        assert chosen == sorted(range(EXPERTS), key=lambda e: (-row[e], e))[:TOP]
        powers = torch.tensor(row, dtype=torch.float64).exp()
        expected = powers[chosen] / (powers[chosen].sum() if renormalise else powers.sum())
        assert ((torch.tensor(shares, dtype=torch.float64) - expected).abs() <= moe_ref.TOLERANCE * expected).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_softmax_after_the_choice_is_renormalising(backend):
    _, logits = moe_ref.make_inputs(2, 40, 1, EXPERTS)
    with dispatch.use(backend):
        ids, shares = moe.route(logits, TOP, renormalise=False)
        weights = moe.route(logits, TOP, renormalise=True)[1]
    torch.testing.assert_close(torch.softmax(logits.gather(1, ids), dim=1), weights, rtol=1e-6, atol=0)
    torch.testing.assert_close(shares / shares.sum(dim=1, keepdim=True), weights, rtol=1e-6, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_mixing_by_the_definition(backend):
    """All experts on all rows in fp64, then the chosen ones' weighted sum."""
    x, logits = moe_ref.make_inputs(3, 33, WIDTH, EXPERTS)
    with dispatch.use(backend):
        ids, weights = moe.route(logits, TOP, True)
        y = moe.mix(x, ids, weights, FLOATING)
    gates, ups = (torch.stack(GATE_UP).double() @ x.T.double()).chunk(2, dim=1)
    every = torch.stack(DOWN).double() @ (torch.nn.functional.silu(gates) * ups)  # [experts, width, rows]
    exact = sum(weights[:, k, None].double() * every[ids[:, k], :, torch.arange(len(x))] for k in range(TOP))
    assert (y - exact).abs().max() <= 1e-5 * exact.abs().max()


def test_native_and_reference_choose_alike():
    x, logits = moe_ref.make_inputs(4, 200, WIDTH, EXPERTS)
    with dispatch.use("ref"):
        ids, _ = moe.route(logits, TOP, True)
        expected = mixture()(x, logits)
    with dispatch.use("cpu"):
        assert torch.equal(moe.route(logits, TOP, True)[0], ids)
        torch.testing.assert_close(mixture()(x, logits), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bits_of_a_row_do_not_depend_on_its_company(backend, kind):
    rows = 128 if backend == "cpu" else 24
    dispatch.use(backend)
    assert_rows_stand_alone(mixture(KINDS[kind], renormalise=False), *moe_ref.make_inputs(5, rows, WIDTH, EXPERTS))


def test_instruction_sets_agree():
    each_isa(lambda: mixture(KINDS["int8"])(*moe_ref.make_inputs(6, 50, WIDTH, EXPERTS)))


def by_number(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: moe.Experts) -> torch.Tensor:
    """Planted: terms in the order of the experts' numbers."""
    by = ids.argsort(dim=1)
    return moe_cpu.mix(x, ids.gather(1, by), weights.gather(1, by), experts)


def padded(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: moe.Experts) -> torch.Tensor:
    """Planted: torch's product over as many rows as there are."""
    total = torch.zeros_like(x)
    for expert in range(EXPERTS):
        share = torch.where(ids == expert, weights, 0).sum(dim=1, keepdim=True)
        total += share * (silu_mul(x @ GATE_UP[expert].T) @ DOWN[expert].T)
    return total


@pytest.mark.parametrize("planted", [by_number, padded])
def test_another_order_of_summation_would_be_seen(planted):
    x, logits = moe_ref.make_inputs(7, 64, WIDTH, EXPERTS)
    ids, weights = moe.route(logits, TOP, True)
    with pytest.raises(AssertionError, match="values differ"):
        assert_same_bits(planted(x, ids, weights, FLOATING), moe.mix(x, ids, weights, FLOATING))


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_chosen_experts_are_touched(backend, monkeypatch):
    """The others' weights may hold anything; and each chosen one is read once however many rows chose it (native)."""
    x, logits = moe_ref.make_inputs(8, 12, WIDTH, EXPERTS)
    logits[:, [1, 4, 6]] = -1e4
    expected = mixture()(x, logits)
    used = sorted(set(range(EXPERTS)) - {1, 4, 6})
    poison = [pack(torch.full_like(weight, torch.nan)) for weight in (GATE_UP[0], DOWN[0])]
    gate_up = tuple(w if e in used else poison[0] for e, w in enumerate(FLOATING.gate_up))
    down = tuple(w if e in used else poison[1] for e, w in enumerate(FLOATING.down))
    read = []
    monkeypatch.setattr("pitstop.ops.moe.experts.linear", lambda x, weight: read.append(weight) or linear(x, weight))
    with dispatch.use(backend):
        torch.testing.assert_close(mixture(moe.Experts(gate_up, down, silu_mul))(x, logits), expected, rtol=1e-5, atol=1e-6)
    assert {id(weight) for weight in read} == {id(weights[e]) for weights in (gate_up, down) for e in used}
    if backend == "cpu":
        assert len(read) == 2 * len(used)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_no_number_stays_alone(bad):
    x, logits = moe_ref.make_inputs(9, 9, WIDTH, EXPERTS)
    expected = mixture()(x, logits)
    logits[4] = bad
    y = mixture()(x, logits)
    assert_same_bits(y[:4], expected[:4])
    assert_same_bits(y[5:], expected[5:])
    assert y[4].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows_give_no_rows(backend):
    with dispatch.use(backend):
        assert mixture()(torch.empty(0, WIDTH), torch.empty(0, EXPERTS)).shape == (0, WIDTH)


def test_other_activations():
    x, logits = moe_ref.make_inputs(10, 5, WIDTH, EXPERTS)
    assert not torch.equal(mixture(replace(FLOATING, activation=gelu_erf_mul))(x, logits), mixture()(x, logits))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="at least 3 experts"):
        moe.route(torch.zeros(4, 2), 3, True)
    with pytest.raises(ValueError, match="do not fit together"):
        moe.mix(torch.zeros(4, WIDTH), *moe.route(torch.zeros(3, EXPERTS), 2, True), FLOATING)


def test_a_decode_step_with_experts_runs_unrecorded(caplog):
    router = pack(torch.randn(EXPERTS, WIDTH, generator=torch.Generator().manual_seed(3)))
    model = SimpleNamespace(embed=lambda x: x, forward=lambda x, view, runs: mixture()(x, linear(x, router)))
    view = SimpleNamespace(tokens=None)
    steps = DecodeGraphs(model, view)
    for seed in (0, 1):
        view.tokens, _ = moe_ref.make_inputs(seed, 4, WIDTH, EXPERTS)
        assert torch.equal(steps.step(4), mixture()(view.tokens, linear(view.tokens, router)))
    assert len(caplog.records) == 1
    assert "cpu: which experts run depends on the rows" in caplog.records[0].message
