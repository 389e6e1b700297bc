"""Grids and codes: what is nearest, what is held, and what rounding by second moments is good for."""

from __future__ import annotations

import pytest
import torch

from pitstop.precision.gptq import gptq, seen
from pitstop.precision.grid import Grid, fit, nearest
from pitstop.precision.scheme import Scheme

SCHEMES = [Scheme(4, 32), Scheme(4, 64, symmetric=False), Scheme(4, 128), Scheme(8), Scheme(8, 32)]


def weights(seed: int = 0, rows: int = 24, inputs: int = 256) -> torch.Tensor:
    """With a few large values, as trained matrices have."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, inputs, generator=generator) * 0.05
    weight[:, ::37] *= 4
    return weight


def inputs(seed: int = 1, rows: int = 2000, width: int = 256) -> torch.Tensor:
    """Correlated, of unequal size."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width // 4, width, generator=generator) * torch.rand(width, generator=generator)
    return torch.randn(rows, width // 4, generator=generator) @ mixing + 0.1 * torch.randn(rows, width, generator=generator)


@pytest.mark.parametrize("size", [1, 1e-3, 1e-5])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_grid_is_what_files_and_kernels_hold(scheme: Scheme, dtype: torch.dtype, size: float) -> None:
    """Of small weights, too, whose scales are no normal numbers of fp16."""
    grid = fit((weights() + 0.02) * size, scheme, dtype)
    assert grid.scales.shape == grid.zeros.shape == (24, 256 // scheme.size(256))
    for held in (torch.float16, dtype):
        assert torch.equal(grid.scales.to(held).float(), grid.scales)
    minima = (scheme.low - grid.zeros.float()) * grid.scales
    if scheme.bits == 4:
        assert torch.equal(minima.half().float(), minima), "the kernels would need fp32 numbers for it"
    assert (grid.zeros == 0).all() == scheme.symmetric
    assert scheme.low <= int(grid.zeros.min()) <= int(grid.zeros.max()) <= scheme.high


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_codes_are_the_nearest(scheme: Scheme) -> None:
    weight = weights()
    rounded = nearest(weight, scheme, torch.float16, ratios=(1.0,))
    step = rounded.grid.spread(256)[0]
    error = (rounded.values() - weight).abs() / step
    # The widest grid cuts nothing off but half a step: for symmetric ones the middle of 16 values is none of them.
    assert error.max() <= 0.5 + 0.02 + (0.5 if scheme.symmetric or scheme.bits == 4 else 0)
    assert error.median() < 0.3
    assert rounded.codes.dtype is torch.int8
    assert scheme.low <= int(rounded.codes.min()) <= int(rounded.codes.max()) <= scheme.high


@pytest.mark.parametrize("scheme", SCHEMES[:3], ids=str)
def test_a_searched_grid_is_nearer_than_the_widest(scheme: Scheme) -> None:
    weight = weights()
    errors = [(nearest(weight, scheme, torch.float16, **ratios).values() - weight).square().sum() for ratios in ({"ratios": (1.0,)}, {})]
    assert errors[1] < 0.97 * errors[0]


def test_steps_of_8_bits_are_searched_beyond_the_widest_range() -> None:
    """What the largest weight at 127 gives is rarely the best, and cutting it off never is."""
    weight = weights(rows=200)
    errors = [
        (nearest(weight, Scheme(8, 32), torch.float16, **ratios).values() - weight).square().sum() for ratios in ({"ratios": (1.0,)}, {})
    ]
    assert errors[1] < 0.85 * errors[0]


def grid_of_16(rows: int = 200, inputs: int = 256) -> torch.Tensor:
    """Weights of 16 values in each group of 32, as models of 4 bits have: minimum + step · code, both fp16."""
    generator = torch.Generator().manual_seed(4)
    steps = torch.rand(rows, inputs // 32, 1, generator=generator) * 0.02 + 0.005
    least = -steps * (7.5 + torch.rand(steps.shape, generator=generator))
    codes = torch.randint(0, 16, (rows, inputs // 32, 32), generator=generator)
    return (least.half().float() + steps.half().float() * codes).flatten(1)


def test_a_grid_of_4_bits_is_found_again_in_8() -> None:
    weight = grid_of_16()
    moved = [
        (nearest(weight, Scheme(8, 32), torch.float16, **ratios).values() - weight).norm() / weight.norm()
        for ratios in ({"ratios": (1.0,)}, {})
    ]
    assert moved[0] > 0.003
    assert moved[1] < 0.4 * moved[0]


@pytest.mark.parametrize("top", [64, 100, 127])
def test_a_grid_of_8_bits_is_found_to_the_bit(top: int) -> None:
    """Of any step that fp16 holds, where the largest code is one of those that are tried."""
    generator = torch.Generator().manual_seed(top)
    codes = torch.randint(-top, top + 1, (50, 256), generator=generator)
    codes[:, ::32] = top
    steps = (torch.rand(50, 8, generator=generator) * 0.01 + 0.001).half().float()
    weight = codes * steps.repeat_interleave(32, 1)
    rounded = nearest(weight, Scheme(8, 32), torch.float16)
    assert torch.equal(rounded.values(), weight)


@pytest.mark.parametrize("scheme", [Scheme(4, 128), Scheme(8, 32)], ids=str)
def test_important_inputs_are_rounded_less(scheme: Scheme) -> None:
    weight, importance = weights(), torch.ones(256)
    importance[5::16] = 1000
    plain, weighed = (fit(weight, scheme, torch.float16, importance=counts) for counts in (None, importance))
    errors = [((Grid.codes(grid, weight).float() * grid.spread(256)[0] - weight) ** 2)[:, 5::16].sum() for grid in (plain, weighed)]
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_weight_that_is_nothing_stays_nothing(scheme: Scheme) -> None:
    values = nearest(torch.zeros(4, 256), scheme, torch.float16).values()
    assert torch.equal(values, torch.zeros(4, 256))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_what_lies_on_a_grid_stays_there(scheme: Scheme) -> None:
    """Of scales that are powers of two."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(scheme.low, scheme.high + 1, (8, 256), generator=generator)
    codes[:, :: scheme.size(256)] = scheme.low
    codes[:, 1 :: scheme.size(256)] = scheme.high
    weight = codes * 2.0**-6
    if not scheme.symmetric:
        assert torch.allclose(nearest(weight, scheme, torch.float16).values(), weight)
    else:
        grid = Grid(scheme, torch.full((8, 256 // scheme.size(256)), 2.0**-6), torch.zeros(8, 256 // scheme.size(256), dtype=torch.int8))
        assert torch.equal(grid.codes(weight), codes.to(torch.int8))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_errors_are_made_up_for(scheme: Scheme) -> None:
    """What counts is the product's error on such inputs; and the weight that was rounded in the end rounds to the same codes."""
    weight, x = weights(), inputs()
    plain = nearest(weight, scheme, torch.float16)
    rounded, last = gptq(weight, scheme, torch.float16, seen(x.T @ x))
    errors = [(x @ (one.values() - weight).T).square().mean() for one in (plain, rounded)]
    assert errors[1] < 0.5 * errors[0]
    assert torch.equal(rounded.grid.codes(last), rounded.codes)
    assert not torch.equal(rounded.codes, plain.codes)


def test_inputs_that_have_nothing_to_do_with_each_other_make_up_for_nothing() -> None:
    weight, scheme = weights(), Scheme(4, 64)
    rounded, last = gptq(weight, scheme, torch.float16, seen(torch.eye(256)))
    assert torch.allclose(last, weight, atol=1e-6)
    assert torch.equal(rounded.codes, nearest(weight, scheme, torch.float16).codes)


def test_inputs_that_never_come_do_no_harm() -> None:
    x = inputs()
    x[:, 7] = 0
    rounded, _ = gptq(weights(), Scheme(4, 64), torch.float16, seen(x.T @ x))
    assert torch.isfinite(rounded.values()).all()
    rounded, _ = gptq(weights(), Scheme(4, 64), torch.float16, seen(torch.zeros(256, 256)))
    assert torch.isfinite(rounded.values()).all()
