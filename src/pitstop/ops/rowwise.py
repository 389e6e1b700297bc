"""Makes a torch function bit-exact by row on the CPU: every row is computed alone, in calls of one shape, by one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """torch's operations on the CPU are done by the thread that calls them.

    torch's threads spin for a while when their part is done, on cores that the native kernels' threads want.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def rowwise(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """function(*tensors) for tensors with as many rows each; `function` maps rows to rows. On CUDA it runs once, batched.

    torch's kernels may change their order of summation with the number of rows, the alignment of a row and the number of threads.
    """
    rows = len(tensors[0])
    if tensors[0].is_cuda or rows == 0:
        return function(*tensors)
    with one_thread():
        return torch.cat([function(*(tensor[row : row + 1].clone() for tensor in tensors)) for row in range(rows)])
