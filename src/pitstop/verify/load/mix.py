"""Which requests a load is made of: shapes by tokens, and the share of each."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from pitstop.errors import ConfigError


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests of so many prompt tokens that ask for so many answer tokens; `share` of all requests."""

    name: str
    share: float
    prompt: int
    answer: int

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if not (math.isfinite(self.share) and 0 < self.share <= 1):
            raise ValueError(f"share must lie in (0, 1], got {self.share}")
        if self.prompt < 8 or self.answer < 2:
            raise ValueError("prompt must be at least 8 tokens and answer at least 2: fewer cannot be told apart or timed")


class Mix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shares add up to 1."""

    requests: list[Shape]

    def __post_init__(self) -> None:
        total = sum(shape.share for shape in self.requests)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares must add up to 1, they add up to {total:g}")
        if len({shape.name for shape in self.requests}) != len(self.requests):
            raise ValueError("two requests have the same name")

    def draw(self, count: int, seed: int) -> list[Shape]:
        """`count` shapes in random order, each as often as its share of `count` says, to the nearest: short runs keep the mix."""
        exact = np.array([shape.share * count for shape in self.requests])
        counts = np.floor(exact + 1e-9).astype(int)
        rest = np.argsort(counts - exact, kind="stable")[: count - counts.sum()]
        counts[rest] += 1
        drawn = [shape for shape, times in zip(self.requests, counts, strict=True) for _ in range(times)]
        return [drawn[place] for place in np.random.default_rng((seed, 0x317)).permutation(count)]


PRESETS = {
    "account": Mix([Shape("512", 0.80, 384, 128), Shape("2048", 0.15, 1920, 128), Shape("8192", 0.05, 8064, 128)]),
    "small": Mix([Shape("32", 0.80, 32, 16), Shape("128", 0.15, 128, 16), Shape("512", 0.05, 512, 16)]),
}
"""account: 80 % of 512, 15 % of 2,048 and 5 % of 8,192 tokens in all, 128 of each the answer. small: the same shape at a sixteenth, with
prompts of 32, 128 and 512 tokens before answers of 16."""


def read_mix(name: str) -> Mix:
    """A preset by its name, or a YAML file:

    requests:
      - {name: short, share: 0.9, prompt: 100, answer: 50}
      - {name: long, share: 0.1, prompt: 4000, answer: 200}

    Raises ConfigError that names file and field.
    """
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if not path.exists():
        raise ConfigError(f"--mix {name}: neither one of {', '.join(PRESETS)} nor a file")
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=Mix)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None
