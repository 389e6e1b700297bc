"""Numbers from the host to a device and back, without waiting: through page-locked memory, in the order of the device's stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


class Mirror:
    """A buffer of fixed address on a device, and where the host fills it. On the CPU both are the same memory."""

    def __init__(self, shape: tuple[int, ...], device: torch.device | str, dtype: torch.dtype = torch.int32) -> None:
        cuda = torch.device(device).type == "cuda"
        self._here = torch.zeros(shape, dtype=dtype, pin_memory=cuda)
        self._there = torch.zeros(shape, dtype=dtype, device=device) if cuda else self._here
        self.host: np.ndarray = self._here.numpy()
        self._first = self._there[:0]  # as it was asked for last: mostly the next step has as many rows

    @property
    def device(self) -> torch.Tensor:
        """All of it, as it was sent last."""
        return self._there

    def send(self, count: int) -> torch.Tensor:
        """The first `count` rows, on the device. The host's must not change before the copy is through."""
        if self._there is not self._here:
            self._there[:count].copy_(self._here[:count], non_blocking=True)
        if len(self._first) != count:
            self._first = self._there[:count]
        return self._first

    def fill(self, rows: list | np.ndarray) -> torch.Tensor:
        """`rows` as its first ones, on the device."""
        if len(rows):
            self.host[: len(rows)] = rows
        return self.send(len(rows))


def upload(values: Sequence, device: torch.device | str, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """[n] on the device, or [n, …] where the values are rows."""
    if torch.device(device).type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def download(values: torch.Tensor) -> torch.Tensor:
    """A copy in host memory, there when the stream has come so far; on the CPU the tensor itself."""
    if not values.is_cuda:
        return values
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
