"""How fast the pairs of a head turn with the position: plain RoPE (Su et al. 2021) and its scalings beyond the length of training.

Every scaling gives, for a head of `dim` and a served `context`, inverse frequencies [dim / 2] fp64 in radians a position, and a factor on
cos and sin. Two of them depend on the current length elsewhere; here the served context stands for it, so that cached keys stay valid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


class Rotation(NamedTuple):
    frequencies: np.ndarray  # [dim / 2] fp64, radians a position
    factor: float = 1.0  # on cos and sin


def frequencies(dim: int, theta: float) -> np.ndarray:
    """theta^(-2i/dim), [dim / 2] fp64."""
    return theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)


class Scaling(Protocol):
    def rotation(self, theta: float, dim: int, context: int) -> Rotation: ...

    def longest(self, positions: int) -> int:
        """Tokens of context that a model is made for whose config states `positions`."""
        ...

    def note(self, context: int) -> str | None:
        """What an operator should know about serving `context` tokens."""
        ...


class _Fixed:
    """A scaling that does not depend on the length, and whose config states the length that it reaches."""

    __slots__ = ()

    def longest(self, positions: int) -> int:
        return positions

    def note(self, context: int) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Rope:
    """theta: the base. scaling: None for plain RoPE."""

    theta: float
    scaling: Scaling | None = None

    def rotation(self, dim: int, context: int) -> Rotation:
        return self.scaling.rotation(self.theta, dim, context) if self.scaling else Rotation(frequencies(dim, self.theta))

    def longest(self, positions: int) -> int:
        return self.scaling.longest(positions) if self.scaling else positions

    def note(self, context: int) -> str | None:
        return self.scaling.note(context) if self.scaling else None


@dataclass(frozen=True, slots=True)
class Linear(_Fixed):
    """Position interpolation (Chen et al. 2023): positions divided by `factor`. `stretches`: the config states the length before it."""

    factor: float
    stretches: bool = True

    def rotation(self, theta: float, dim: int, context: int) -> Rotation:
        return Rotation(frequencies(dim, theta) / self.factor)

    def longest(self, positions: int) -> int:
        return int(positions * self.factor) if self.stretches else positions


@dataclass(frozen=True, slots=True)
class DynamicNTK:
    """Dynamic NTK-aware scaling (bloc97 and emozilla 2023): a larger base for longer texts, none up to `original` tokens."""

    factor: float
    original: int

    def rotation(self, theta: float, dim: int, context: int) -> Rotation:
        length = max(context, self.original)
        stretched = self.factor * length / self.original - (self.factor - 1)
        return Rotation(frequencies(dim, theta * stretched ** (dim / (dim - 2))))

    def longest(self, positions: int) -> int:
        return int(positions * self.factor)

    def note(self, context: int) -> str:
        if context <= self.original:
            return f"RoPE: dynamic NTK scaling is not in use, the context is within the original {self.original} tokens"
        return (
            f"RoPE: dynamic NTK scaling is fixed for the served context of {context} tokens, so that cached keys stay valid; shorter texts "
            f"are computed with it too. For texts within {self.original} tokens, --context {self.original} serves the model unscaled"
        )


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (Peng et al. 2023): fast pairs as they are, slow ones interpolated by `factor`, a ramp between; attention sharpened.

    attention: the factor on cos and sin. beta_fast, beta_slow: rotations within `original` tokens at the ramp's ends. truncate: whether
    the ramp's ends are rounded outwards to whole pairs.
    """

    factor: float
    original: int
    attention: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def rotation(self, theta: float, dim: int, context: int) -> Rotation:
        low, high = (self._pair(rotations, theta, dim) for rotations in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / (high - low or 0.001), 0, 1)
        plain = frequencies(dim, theta)
        return Rotation(plain / self.factor * ramp + plain * (1 - ramp), self.attention)

    def longest(self, positions: int) -> int:
        return max(positions, int(self.original * self.factor))

    def note(self, context: int) -> None:
        return None

    def _pair(self, rotations: float, theta: float, dim: int) -> float:
        """The index of the pair that turns so many times within the original context."""
        return dim * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(theta))


def yarn_attention(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """YaRN's factor on cos and sin, where the config states none."""

    def grown(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1 if factor > 1 else 1.0

    return grown(mscale) / grown(mscale_all_dim) if mscale and mscale_all_dim else grown(1.0)


@dataclass(frozen=True, slots=True)
class Llama3(_Fixed):
    """Llama 3.1's: wavelengths above original / low divided by `factor`, those below original / high kept, a blend between."""

    factor: float
    low: float
    high: float
    original: int

    def rotation(self, theta: float, dim: int, context: int) -> Rotation:
        plain = frequencies(dim, theta)
        turns = self.original * plain / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return Rotation((1 - kept) * plain / self.factor + kept * plain)


@dataclass(frozen=True, slots=True)
class LongRope(_Fixed):
    """LongRoPE (Ding et al. 2024): each pair's own divisor, one set up to `original` tokens and another beyond. Each [dim / 2]."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    attention: float

    def rotation(self, theta: float, dim: int, context: int) -> Rotation:
        divisors = self.long if context > self.original else self.short
        return Rotation(frequencies(dim, theta) / np.array(divisors, np.float64), self.attention)

    def note(self, context: int) -> str:
        which = "long" if context > self.original else "short"
        text = (
            f"RoPE: LongRoPE is fixed to its {which} factors for the served context of {context} tokens, so that cached keys stay valid; "
            "texts of every length are computed with them"
        )
        return f"{text}. --context {self.original} serves the short ones" if which == "long" else text


def longrope_attention(factor: float, original: int) -> float:
    """LongRoPE's factor on cos and sin, where the config states none; factor: how much longer the context is than the original."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Divided(_Fixed):
    """Each pair's own divisor, [dim / 2], as GGUF files store what Llama 3.1's scaling comes to."""

    divisors: tuple[float, ...]

    def rotation(self, theta: float, dim: int, context: int) -> Rotation:
        return Rotation(frequencies(dim, theta) / np.array(self.divisors, np.float64))
