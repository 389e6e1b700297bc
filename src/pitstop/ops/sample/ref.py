"""The choices in plain torch, by sorting, and their inputs. There is nothing to tolerate."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pitstop.ops.sample.draws import LIKELIEST, ONE


def greedy(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(dim=1)


def draw(logits: torch.Tensor, draws: torch.Tensor, exp: Callable[[torch.Tensor], torch.Tensor] = torch.exp) -> torch.Tensor:
    temperature, top_k, top_p, least, uniform = draws.T[..., None]
    weights, ids = _weights(logits, temperature.float(), exp).sort(dim=1, descending=True, stable=True)
    place = torch.arange(logits.shape[1], device=logits.device)
    kept = weights.where((place < top_k) | (top_k == 0), 0)
    wanted = (top_p * kept.sum(1, keepdim=True).double()).ceil().long()
    before = kept.cumsum(1) - kept
    kept = kept.where(((before < wanted) | (top_p == 1)) & (weights >= least), 0)
    running = torch.zeros_like(kept).scatter(1, ids, kept).cumsum(1)
    return (running <= (uniform * running[:, -1:].double()).long()).sum(1)


def _weights(logits: torch.Tensor, temperature: torch.Tensor, exp: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    most = logits.amax(1, keepdim=True)
    shares = exp((logits - most) / temperature).nan_to_num(0.0)
    return (shares * ONE).long().where((logits != most) & ~logits.isnan(), ONE)


def make_inputs(seed: int, rows: int, vocab: int) -> torch.Tensor:
    """logits [rows, vocab] fp32 in steps of 1/8, so that many are equal; rows of equal ones, of zeros of both signs, with infinities
    and with NaN come first, as far as there are rows."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, vocab, generator=generator) * 24).round() / 8
    logits[:1] = -torch.inf
    logits[1:2] = 0.0
    logits[1:2, ::2] = -0.0
    logits[2:3, vocab // 2 :] = torch.inf
    logits[3:4, vocab // 3] = torch.nan
    return logits


def make_draws(seed: int, rows: int) -> torch.Tensor:
    """draws [rows, 5] fp64: all that a request may ask for, the extremes included."""
    generator = torch.Generator().manual_seed(seed)

    def of(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)[torch.randint(len(values), (rows,), generator=generator)]

    temperature = of([0.0, 1e-5, 0.3, 0.7, 1.0, 1.0, 3.0, 100.0]).float().double()
    top_k, top_p = of([0, 0, 1, 2, 5, 50, 1000, 2**31 - 1]), of([1.0, 1.0, 0.95, 0.9, 0.5, 0.01, 1e-300, 1 - 2**-53])
    least, uniform = of([0, 0, 0, ONE // 20 + 1, ONE]), torch.rand(rows, generator=generator, dtype=torch.float64)
    uniform[::7], uniform[3::7] = 0.0, 1 - 2**-53
    draws = torch.stack([temperature, top_k, top_p, least, uniform], dim=1)
    draws[temperature == 0] = torch.tensor(LIKELIEST, dtype=torch.float64)
    return draws
