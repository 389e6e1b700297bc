"""Rounding a weight to a grid: which scales, and which codes. Plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pitstop.precision.scheme import Scheme

RATIOS = tuple(1 - 0.025 * step for step in range(17))
"""Of the widest range of a group, what is tried for its grid: a narrower one cuts the largest weights off and rounds the others less."""
_CACHED = 1 << 15
"""Weights that are fitted at once: they stay in the cache, and torch cuts nothing so small into threads that wait for each other."""
_DIGITS = 7
"""Significant bits of a scale beside zeros of 4 bits: scale · zero then has 11, which fp16 holds, so that our kernels need no fp32."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Of a weight [out, in]: scales fp32 and zeros int8, each [out, groups]; the scales are what the file's dtype holds."""

    scheme: Scheme
    scales: torch.Tensor
    zeros: torch.Tensor

    def spread(self, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero of every weight, fp32 [out, inputs] each."""
        size = self.scheme.size(inputs)
        return self.scales.repeat_interleave(size, 1), self.zeros.float().repeat_interleave(size, 1)

    def codes(self, weight: torch.Tensor) -> torch.Tensor:
        """The nearest codes of weight [out, in] fp32 → int8."""
        scales, zeros = self.spread(weight.shape[1])
        return (torch.round(weight / scales) + zeros).clamp_(self.scheme.low, self.scheme.high).to(torch.int8)


@dataclass(frozen=True, slots=True)
class Rounded:
    """A weight on its grid; codes int8 [out, in]."""

    grid: Grid
    codes: torch.Tensor

    def values(self) -> torch.Tensor:
        """fp32 [out, in]."""
        scales, zeros = self.grid.spread(self.codes.shape[1])
        return (self.codes.float() - zeros) * scales


def fit(
    weight: torch.Tensor,
    scheme: Scheme,
    dtype: torch.dtype,
    importance: torch.Tensor | None = None,
    ratios: tuple[float, ...] | None = None,
) -> Grid:
    """The grid of weight [out, in] fp32 whose nearest values have the least squared error, among ranges of `ratios` (RATIOS) of the widest.

    importance: [in], how much an input's errors count; None: all alike. dtype: what the file holds scales in. Ratios (1,) give the grid
    from least to largest value.
    """
    rows = max(1, _CACHED // weight.shape[1])
    pieces = [_fit(piece, scheme, dtype, importance, ratios or RATIOS) for piece in weight.split(rows)]
    scales, zeros = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return Grid(scheme, scales, zeros.to(torch.int8))


def _fit(
    weight: torch.Tensor, scheme: Scheme, dtype: torch.dtype, importance: torch.Tensor | None, ratios: tuple[float, ...]
) -> list[torch.Tensor]:
    """Scales and zeros, fp32."""
    grouped = weight.unflatten(1, (-1, scheme.size(weight.shape[1])))
    counts = 1.0 if importance is None else importance.view(1, grouped.shape[1], -1)
    low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
    best: list[torch.Tensor] = []
    for ratio in ratios:
        scales, zeros = _stretched(low * ratio, high * ratio, scheme, dtype)
        codes = (torch.round(grouped / scales[..., None]) + zeros[..., None]).clamp_(scheme.low, scheme.high)
        error = (((codes - zeros[..., None]) * scales[..., None] - grouped).square_() * counts).sum(2)
        found = [error, scales, zeros]
        best = [torch.where(error < best[0], new, old) for new, old in zip(found, best, strict=True)] if best else found
    return best[1:]


def nearest(weight: torch.Tensor, scheme: Scheme, dtype: torch.dtype, ratios: tuple[float, ...] | None = None) -> Rounded:
    """weight [out, in] fp32 to the nearest values of the grid that `fit` finds."""
    grid = fit(weight, scheme, dtype, ratios=ratios)
    return Rounded(grid, grid.codes(weight))


def _stretched(low: torch.Tensor, high: torch.Tensor, scheme: Scheme, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zeros fp32 [out, groups] of grids from low to high."""
    steps = scheme.high - scheme.low
    if scheme.symmetric:
        scales = _storable(torch.maximum(-low, high) * 2 / steps, dtype)
        return scales, torch.zeros_like(scales)
    scales = _storable(_rounded((high - low) / steps), dtype)
    return scales, (scheme.low - torch.round(low / scales)).clamp_(scheme.low, scheme.high)


def _rounded(scales: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(scales)
    return torch.ldexp(torch.round(mantissa * 2**_DIGITS) / 2**_DIGITS, exponent)


def _storable(scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What dtype holds, fp16 in the place of fp32; 1 for what is nothing there, whose weights are all but 0."""
    held = scales.to(torch.bfloat16 if dtype is torch.bfloat16 else torch.float16).float()
    return torch.where(held > 0, held, 1.0)
