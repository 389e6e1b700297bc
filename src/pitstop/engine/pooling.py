"""From a text's hidden states, which come in chunks, to one vector. Imports no torch."""

from __future__ import annotations

import numpy as np

from pitstop.types import Pooling


class Pool:
    """The hidden states of one text, in order of position, and what is to become of them.

    A mean is summed in fp64, one row after the other, so that its bits do not depend on how the rows are cut into chunks.
    """

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._vector: np.ndarray | None = None
        self.rows = 0
        """Rows seen so far."""

    def add(self, hidden: np.ndarray) -> None:
        """hidden [rows, width] fp32: those that follow the rows so far; of "last", the last of them is enough."""
        if self._pooling == "mean":
            total = np.zeros(hidden.shape[1]) if self._vector is None else self._vector
            for row in hidden:
                total += row
            self._vector = total
        elif self._pooling == "last":
            self._vector = hidden[-1].copy()
        elif self._vector is None:
            self._vector = hidden[0].copy()
        self.rows += len(hidden)

    def vector(self) -> bytes:
        """[width] fp32, little endian."""
        vector = self._vector / self.rows if self._pooling == "mean" else self._vector
        return vector.astype("<f4").tobytes()

    def clear(self) -> None:
        """Begin anew: the request was preempted."""
        self._vector, self.rows = None, 0
