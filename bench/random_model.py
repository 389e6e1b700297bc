"""Models of published shapes with random weights, made where they are read: what is measured is speed, and no file has to travel."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from pitstop.models.config import ModelConfig
from pitstop.models.embedding import Embedding
from pitstop.models.rope import Rope
from pitstop.models.weights.tensor import RawTensor
from pitstop.text.vocabulary import TokenType, Vocabulary


def _llama(layers: int, width: int, heads: int, kv_heads: int, ffn: int, vocabulary: int, theta: float, tied: bool) -> ModelConfig:
    """heads: of width / heads values."""
    dim = width // heads
    shape = {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "ffn": ffn, "vocab_size": vocabulary}
    return ModelConfig("llama", **shape, context=8192, norm_eps=1e-5, rope=Rope(theta), attention_scale=dim**-0.5, tied_head=tied)


SMOLLM2_135M = _llama(30, 576, 9, 3, 1536, 49152, 1e5, tied=True)
LLAMA3_8B = _llama(32, 4096, 32, 8, 14336, 128256, 5e5, tied=False)
TINY = _llama(2, 128, 4, 2, 256, 512, 1e5, tied=True)

BITS = {"F16": 16.0, "Q4_0": 4.5}
"""A weight's, by the way of storing."""


class RandomSource:
    """A ModelSource without a file. Matrices are stored as `kind` and repeat a stretch of random values; vectors are ones."""

    def __init__(self, config: ModelConfig, kind: str = "F16", seed: int = 0) -> None:
        self.config, self._kind = config, kind
        self.path = Path(__file__)  # what it is made from
        generator = np.random.default_rng(seed)
        deviation = config.width**-0.5
        if kind == "F16":
            self._stretch = (generator.standard_normal((1 << 22) + 1) * deviation).astype(np.float16)
        else:
            blocks = generator.integers(0, 256, (1 << 18, 18), dtype=np.uint8)
            blocks[:, :2] = np.array([deviation / 4], "<f2").view(np.uint8)  # codes deviate by about 4
            self._stretch = blocks.reshape(-1)

    def tensor(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        if len(shape) == 1:
            return RawTensor(name, "F32", shape, np.ones(shape, np.float32))
        stored = shape if self._kind == "F16" else (*shape[:-1], shape[-1] // 32 * 18)
        return RawTensor(name, self._kind, shape, np.resize(self._stretch, stored))

    def vocabulary(self) -> Vocabulary:
        tokens = [f"t{number}" for number in range(self.config.vocab_size)]
        return Vocabulary("gpt2", "smollm", tokens, [TokenType.NORMAL] * len(tokens), [])

    def embedding(self) -> Embedding | None:
        return None

    def notes(self) -> list[str]:
        return []

    @property
    def step_bytes(self) -> float:
        """Weights that one step reads, as stored: all matrices, of which an embedding that is no head is but looked up."""
        tensors = {name: math.prod(shape) for name, shape in self.config.tensors().items() if len(shape) > 1}
        if not self.config.tied_head:
            del tensors["token_embd.weight"]
        return sum(tensors.values()) * BITS[self._kind] / 8
