"""A checked request, and how its answer will be worded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pitstop.pool import Delta
from pitstop.server.schema.answers import Chunk
from pitstop.types import Request


class Shape(Protocol):
    """How one route words its answer: the chunks of a stream, and their fold."""

    def chunks(self, index: int, delta: Delta) -> list[Chunk]:
        """What a delta of choice `index` becomes; may be nothing."""
        ...

    def usage_chunk(self, usage: dict) -> Chunk: ...

    def fold(self, whole: Chunk, chunk: Chunk) -> None:
        """Add a chunk to the answer, which begins as {}."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request: one engine request per choice, in the order of their indices."""

    requests: list[Request]
    shape: Shape
    stream: bool
    include_usage: bool
