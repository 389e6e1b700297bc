"""What every Triton kernel here needs: a GPU that it compiles for, or Triton's interpreter."""

from __future__ import annotations

import os
from functools import cache

import torch

from pitstop.errors import how_to_install
from pitstop.ops.chip import H200, Chip

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton then runs kernels on tensors in host memory."""


@cache
def missing() -> str | None:
    """Why Triton cannot be used, or None."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"{error}: {how_to_install('gpu')}"
    return None


def refuse(**tensors: torch.Tensor) -> str | None:
    """Why kernels cannot run on these tensors, by name; None when they can."""
    for name, tensor in tensors.items():
        if not (tensor.is_cuda or INTERPRETED):
            return f"{name} is not on a GPU"
        if tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) < (8, 0):
            return "GPUs before sm_80"
    return missing()


@cache
def chip(device: torch.device) -> Chip:
    """What is there; an H200 for the interpreter."""
    if device.type != "cuda":
        return H200
    found = torch.cuda.get_device_properties(device)
    arch = 80 if found.major < 9 else 90
    return Chip(arch, found.multi_processor_count, found.shared_memory_per_block_optin, found.shared_memory_per_multiprocessor)
