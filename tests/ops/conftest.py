"""Every op test has all cores, and leaves backend, instruction set and threads as it found them."""

from __future__ import annotations

import pytest
import torch

from pitstop.ops import dispatch


@pytest.fixture(autouse=True)
def _restore(all_cores):
    if dispatch.native is None:
        pytest.fail(f"the native kernels are missing: {dispatch.native_missing()}")
    isa, threads = dispatch.native.isa(), torch.get_num_threads()
    yield
    dispatch.use("auto")
    dispatch.native.set_isa(isa)
    dispatch.set_threads(threads)
