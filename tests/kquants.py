"""Random K-quant blocks, laid out by hand: the gguf library reads these kinds and does not write them."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

K_KINDS = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
"""Bytes of a block of 256."""


def random_blocks(kind: str, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """A matrix [rows, columns] whose values vary by about columns ** -0.5, as its blocks [rows, bytes] uint8; `columns` by 256."""
    blocks = rng.integers(0, 256, (rows, columns // 256, K_KINDS[kind]), dtype=np.uint8)
    size = columns**-0.5 * rng.uniform(0.8, 1.25, blocks.shape[:2])
    if kind == "Q6_K":
        blocks[..., 192:208] = rng.integers(-127, 128, (*blocks.shape[:2], 16)).astype(np.int8).view(np.uint8)
        _put_half(blocks, 208, size / 1360)
    else:
        levels = 15 if kind == "Q4_K" else 31
        _put_half(blocks, 0, size / levels / 16)
        _put_half(blocks, 2, size / 33)
    return blocks.reshape(rows, -1)


def _put_half(blocks: np.ndarray, at: int, values: np.ndarray) -> None:
    blocks[..., at : at + 2] = values.astype(np.float16)[..., None].view(np.uint8)


def encode(kind: str, values: np.ndarray, seed: int = 0) -> np.ndarray:
    """fp32 `values` [rows, columns] stored as `kind`; of the kinds that the library does not write, random ones of that shape instead."""
    if kind in K_KINDS:
        return random_blocks(kind, *values.shape, np.random.default_rng(seed))
    return quantize(values, GGMLQuantizationType[kind])


def decode(kind: str, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The library's values, fp32."""
    return dequantize(data, GGMLQuantizationType[kind]).reshape(shape)
