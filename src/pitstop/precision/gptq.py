"""Rounding that makes up for itself: the error of an input is spread over the inputs that are still to be rounded (GPTQ, Frantar 2023)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pitstop.precision.grid import Grid, Rounded, fit
from pitstop.precision.scheme import Scheme

DAMPING = 0.01
"""Of the mean of the second moments, added to each: keeps the matrix invertible."""
_BLOCK = 128
"""Inputs that are rounded before the others are made to follow."""


class Inputs(NamedTuple):
    """What is known of the inputs [in] of a matrix, or of several that have them in common. Make it with `seen`."""

    weight: torch.Tensor  # [in] fp32: how large they are, squared
    order: torch.Tensor  # [in]: the largest first
    upper: torch.Tensor  # [in, in] fp32, in this order: the upper Cholesky factor of the inverse of their second moments


def seen(moments: torch.Tensor) -> Inputs:
    """Of second moments [in, in] fp32: of inputs that are always 0, too."""
    diagonal = moments.diagonal().clone()
    order = diagonal.argsort(descending=True, stable=True)
    damped = moments[order][:, order].double()
    damped.diagonal().add_(DAMPING * damped.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return Inputs(diagonal, order, torch.linalg.cholesky(inverse, upper=True).float())


def gptq(weight: torch.Tensor, scheme: Scheme, dtype: torch.dtype, inputs: Inputs) -> tuple[Rounded, torch.Tensor]:
    """weight [out, in] fp32 such that (weight - rounded) x is small for such inputs x.

    Grids are fitted first, weighed by the inputs; then inputs are rounded, the largest first. Also returns the weight that was rounded in
    the end, fp32 [out, in]: each input's with what it was to make up for; its nearest values are the rounded ones.
    """
    order, upper = inputs.order, inputs.upper
    grid = fit(weight, scheme, dtype, inputs.weight)
    scales, zeros = (part[:, order] for part in grid.spread(weight.shape[1]))
    left, codes = weight[:, order].clone(), torch.empty_like(weight)
    for start in range(0, weight.shape[1], _BLOCK):
        rows = slice(start, start + _BLOCK)
        piece, errors = left[:, rows], torch.empty_like(left[:, rows])
        for i in range(piece.shape[1]):
            j, column = start + i, piece[:, i]
            code = (torch.round(column / scales[:, j]) + zeros[:, j]).clamp_(scheme.low, scheme.high)
            errors[:, i] = (column - (code - zeros[:, j]) * scales[:, j]) / upper[j, j]
            piece[:, i + 1 :] -= errors[:, i, None] * upper[j, j + 1 : start + piece.shape[1]]
            codes[:, j] = code
        left[:, start + _BLOCK :] -= errors @ upper[rows, start + _BLOCK :]
    back = order.argsort()
    return Rounded(Grid(scheme, grid.scales, grid.zeros), codes[:, back].to(torch.int8)), left[:, back]
