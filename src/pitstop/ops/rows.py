"""How native kernels see a tensor: an address, and a stride between rows that are contiguous in themselves."""

from __future__ import annotations

import torch

from pitstop.ops.dispatch import Declined


def strided(x: torch.Tensor) -> torch.Tensor:
    """x itself when each of its rows is contiguous (a slice of columns is), else a contiguous copy."""
    strides = x.stride()
    if strides[-1] == 1 and (len(strides) == 2 or strides[1] == x.shape[2]):
        return x
    return x.contiguous()


def refuse(**tensors: torch.Tensor) -> Declined | None:
    """Why the native fp32 kernels do not take these tensors, by name; None when they do."""
    for name, tensor in tensors.items():
        if tensor.dtype is not torch.float32:
            return Declined(f"{name} must be float32")
        if not tensor.is_cpu:
            return Declined(f"{name} is not in host memory")
    return None
