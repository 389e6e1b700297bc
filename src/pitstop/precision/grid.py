"""Rounding a weight to a grid: which scales, and which codes. Plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pitstop.precision.scheme import Scheme

RATIOS = {4: tuple(1 - 0.025 * step for step in range(17)), 8: tuple(127 / top for top in range(127, 63, -1))}
"""Of the widest range of a group, what is tried for its grid, by bits. With 4 a narrower one cuts the largest weights off and rounds the
others less. With 8 that never pays, but a wider one may have steps that fit: the largest weight is tried at each code from 127 to 64."""
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
    """The grid of weight [out, in] fp32 whose nearest values have the least squared error, among ranges of `ratios` of the widest.

    importance: [in], how much an input's errors count; None: all alike. dtype: what the file holds scales in. ratios: RATIOS where None;
    (1,) gives the grid from least to largest value.
    """
    rows, fit_piece = max(1, _CACHED // weight.shape[1]), _fit_steps if scheme.bits == 8 else _fit_ranges
    pieces = [fit_piece(piece, scheme, dtype, importance, ratios or RATIOS[scheme.bits]) for piece in weight.split(rows)]
    scales, zeros = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return Grid(scheme, scales, zeros.to(torch.int8))


def _fit_ranges(
    weight: torch.Tensor, scheme: Scheme, dtype: torch.dtype, importance: torch.Tensor | None, ratios: tuple[float, ...]
) -> list[torch.Tensor]:
    """Scales and zeros, fp32."""
    grouped, counts = _grouped(weight, scheme, importance)
    low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
    best: list[torch.Tensor] = []
    for ratio in ratios:
        scales, zeros = _stretched(low * ratio, high * ratio, scheme, dtype)
        codes = (torch.round(grouped / scales[..., None]) + zeros[..., None]).clamp_(scheme.low, scheme.high)
        error = (((codes - zeros[..., None]) * scales[..., None] - grouped).square_() * counts).sum(2)
        found = [error, scales, zeros]
        best = [torch.where(error < best[0], new, old) for new, old in zip(found, best, strict=True)] if best else found
    return best[1:]


def _fit_steps(
    weight: torch.Tensor, scheme: Scheme, dtype: torch.dtype, importance: torch.Tensor | None, ratios: tuple[float, ...]
) -> list[torch.Tensor]:
    """The same of symmetric schemes, without cutting anything off: each range gives codes c, and those the best scale, Σwc / Σc².

    What (Σwc)² / Σc² lacks of Σw² is the squared error. Weights that lie on a grid of few enough steps are found to the bit: from the
    nearest of the ranges on, which differ by a code at the largest weight, each has its own code.
    """
    grouped, counts = _grouped(weight, scheme, importance)
    tiny = torch.finfo(torch.float32).tiny
    widest = (grouped.abs().amax(2) / scheme.high).clamp(min=tiny)
    scales, most = widest, torch.zeros_like(widest)
    for ratio in ratios:
        codes = torch.round(grouped / (widest * ratio)[..., None])
        weighed = codes if importance is None else codes * counts
        along, length = (weighed * grouped).sum(2), (weighed * codes).sum(2).clamp(min=tiny)
        scale = along / length
        explained = along * scale
        scales, most = torch.where(explained > most, scale, scales), torch.maximum(explained, most)
    scales = _storable(scales, dtype)
    return [scales, torch.zeros_like(scales)]


def _grouped(weight: torch.Tensor, scheme: Scheme, importance: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | float]:
    """weight [out, groups, size], and how much its errors count."""
    grouped = weight.unflatten(1, (-1, scheme.size(weight.shape[1])))
    return grouped, 1.0 if importance is None else importance.view(1, grouped.shape[1], -1)


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
    """What fp16 holds, as the kernels want it, and dtype too; 1 for what is nothing there, whose weights are all but 0."""
    held = scales.half()
    held = (held.bfloat16() if dtype is torch.bfloat16 else held).float()
    return torch.where(held > 0, held, 1.0)
