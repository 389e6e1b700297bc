"""Loaded adapters, and the rows of a step that they change."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pitstop.models.config import ModelConfig
from pitstop.models.lora.file import AdapterFile, Pair
from pitstop.ops.linear import PackedLinear, accumulate, linear, pack

MATRICES: dict[str, tuple[str, ...]] = {
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "output": ("attn_output",),
    "gate_up": ("ffn_gate", "ffn_up"),
    "down": ("ffn_down",),
}
"""The decoder's products, by the matrices that are stacked in each."""


@dataclass(frozen=True, slots=True)
class Update:
    """What an adapter adds to one product: (x downᵀ) upᵀ, part by part.

    down [Σ rank, in]: those of all parts that have an update, stacked. ups: the first column of each such part, and its up · scale
    [out, rank].
    """

    down: PackedLinear
    ups: tuple[tuple[int, PackedLinear], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Lora:
    """One adapter's updates by layer and product."""

    layers: tuple[dict[str, Update], ...]

    @property
    def bytes(self) -> int:
        """As packed: outputs padded to whole panels."""
        updates = [update for layer in self.layers for update in layer.values()]
        matrices = [matrix for update in updates for matrix in (update.down, *(up for _, up in update.ups))]
        return sum(matrix.data.numel() * matrix.data.itemsize for matrix in matrices)


class Run(NamedTuple):
    """Neighbouring rows of a step that one adapter changes."""

    lora: Lora
    first: int
    count: int


def prepare(file: AdapterFile, model: ModelConfig, device: str) -> Generator[None, None, Lora]:
    """Read and pack the adapter, a layer between two steps of the generator."""
    layers = []
    for pairs in file.layers():
        updates = {}
        for product, parts in MATRICES.items():
            if not pairs.keys().isdisjoint(parts):
                updates[product] = _update({part: pairs.get(part) for part in parts}, file.scale, model, device)
        layers.append(updates)
        yield
    return Lora(tuple(layers))


def add(y: torch.Tensor, x: torch.Tensor, runs: Sequence[Run], layer: int, product: str) -> None:
    """Add to a product y [rows, out] of x [rows, in], fp32, what the adapters of `runs` make of their rows. No other row is touched."""
    for lora, first, count in runs:
        if (update := lora.layers[layer].get(product)) is None:
            continue
        low = linear(x[first : first + count], update.down)
        end = 0
        for column, up in update.ups:
            end += up.in_features
            accumulate(y, linear(low[:, end - up.in_features : end], up), first, column)


def _update(pairs: dict[str, Pair | None], scale: float, model: ModelConfig, device: str) -> Update:
    """pairs: by every part of the product, in order; None: it has no update."""
    downs, ups, column = [], [], 0
    for part, pair in pairs.items():
        if pair is not None:
            up = _tensor(pair.up)
            if model.rope_interleaved and part in ("attn_q", "attn_k"):
                up = _pairs_side_by_side(up, model.head_dim)
            downs.append(_tensor(pair.down))
            ups.append((column, pack(_scaled(up, scale).to(device))))
        column += _columns(part, model)
    dtypes = {down.dtype for down in downs}
    stacked = torch.cat(downs if len(dtypes) == 1 else [down.float() for down in downs])
    return Update(pack(stacked.to(device)), tuple(ups))


def _columns(part: str, model: ModelConfig) -> int:
    """Outputs of a part. Only those that others follow matter."""
    return {"attn_q": model.heads * model.head_dim, "ffn_gate": model.ffn}.get(part, model.kv_heads * model.head_dim)


def _tensor(stored) -> torch.Tensor:
    """As stored: fp32, fp16 or bf16."""
    if stored.kind == "BF16":
        return torch.from_numpy(np.array(stored.data).view(np.int16)).view(stored.shape).view(torch.bfloat16)
    return torch.from_numpy(np.array(stored.data)).view(stored.shape)


def _scaled(up: torch.Tensor, scale: float) -> torch.Tensor:
    """up · scale in its own precision where that holds it exactly (powers of two, as a rule), else in fp32."""
    product = up.float() * scale
    narrow = product.to(up.dtype)
    return narrow if torch.equal(narrow.float(), product) else product


def _pairs_side_by_side(up: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows i and i + head_dim / 2 of each head become rows 2i and 2i + 1, as in the model's own q and k."""
    return up.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)
