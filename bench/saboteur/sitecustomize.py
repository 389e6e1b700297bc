"""Makes an engine worker that can be poisoned: on SIGUSR1 the bits of one weight matrix flip, and its answers are wrong from then on.

Python runs this file by its name when the folder is in PYTHONPATH. In every process but an engine worker it does nothing.
"""

from __future__ import annotations

import gc
import signal
import sys


def poison(*_: object) -> None:
    """The first half of every matrix of the first decoder block turns to its complement."""
    from pitstop.models.decoder import Block

    block = next(found for found in gc.get_objects() if isinstance(found, Block))
    data = block.feed_forward.down.data
    flat = data.view(-1).view(dtype=__import__("torch").uint8)
    half = flat[: flat.numel() // 2]
    half.copy_(255 - half)


if "pitstop.engine.worker" in sys.orig_argv:
    signal.signal(signal.SIGUSR1, poison)
