"""Models of published shapes with random weights, made where they are read: what is measured is speed, and no file has to travel."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from pitstop.models.config import ModelConfig
from pitstop.models.embedding import Embedding
from pitstop.models.rope import Rope
from pitstop.models.weights.tensor import RawTensor
from pitstop.text.vocabulary import TokenType, Vocabulary

SMOLLM2_135M = ModelConfig(
    "llama",
    30,
    576,
    9,
    3,
    64,
    1536,
    vocab_size=49152,
    context=8192,
    norm_eps=1e-5,
    rope=Rope(1e5),
    attention_scale=64**-0.5,
    tied_head=True,
)
LLAMA3_8B = ModelConfig(
    "llama",
    32,
    4096,
    32,
    8,
    128,
    14336,
    vocab_size=128256,
    context=8192,
    norm_eps=1e-5,
    rope=Rope(5e5),
    attention_scale=128**-0.5,
    tied_head=False,
)
TINY = replace(SMOLLM2_135M, layers=2, width=128, heads=4, kv_heads=2, head_dim=32, ffn=256, vocab_size=512)

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
