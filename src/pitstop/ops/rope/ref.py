"""rotate in plain torch, and its inputs."""

from __future__ import annotations

import torch

TOLERANCE = 0.0
"""Four products, a difference and a sum, each rounded once on either backend."""


def rotate(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    # Elementwise IEEE arithmetic: rows cannot influence each other's bits, so no row runs alone here.
    c, s = cos[positions.long()][:, None], sin[positions.long()][:, None]
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    rotated = a * c - b * s, b * c + a * s
    return torch.stack(rotated, dim=-1).flatten(-2) if interleaved else torch.cat(rotated, dim=-1)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    dim, step = x.shape[2], 1
    out = x
    while step < dim:
        pairs = out.unflatten(2, (-1, 2, step))
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        out = torch.stack([a + b, a - b], dim=-2).flatten(2)
        step *= 2
    return out * dim**-0.5


def make_inputs(seed: int, rows: int, heads: int, dim: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, heads, dim] fp32 and positions [rows] int32 below `context`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, heads, dim, generator=generator)
    return x, torch.randint(0, context, (rows,), generator=generator, dtype=torch.int32)
