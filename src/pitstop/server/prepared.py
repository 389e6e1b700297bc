"""A checked request, and how its answer will be worded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from pitstop.pool import Delta
from pitstop.server.schema.answers import Chunk
from pitstop.types import Request


class Shape(ABC):
    """How one route words its answer: the chunks of a stream, and their fold.

    typed: each chunk has a "type", which names its event. last: what a stream that went well ends with.
    """

    typed = False
    last = b"data: [DONE]\n\n"

    @abstractmethod
    def chunks(self, index: int, delta: Delta) -> list[Chunk]:
        """What a delta of choice `index` becomes; may be nothing."""

    @abstractmethod
    def end(self, usage: Chunk) -> list[Chunk]:
        """What follows the last delta. usage: as `Tally` has it."""

    def failure(self, status: int, error: Chunk) -> Chunk:
        """What ends a stream that fails. status: that it would have had; error: OpenAI's error object."""
        return error

    @abstractmethod
    def fold(self, whole: Chunk, chunk: Chunk) -> None:
        """Add a chunk to the answer, which begins as {}."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request: one engine request per choice, in the order of their indices. include_usage: a stream gets `Shape.end`."""

    requests: list[Request]
    shape: Shape
    stream: bool
    include_usage: bool
