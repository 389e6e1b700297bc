"""Makes an engine worker that can be poisoned: on SIGUSR1 the bits of one weight matrix flip, and its answers are wrong from then on; on
SIGUSR2 its answers to probes alone are.

Python runs this file by its name when the folder is in PYTHONPATH. In every process but an engine worker it does nothing.
"""

from __future__ import annotations

import gc
import signal
import sys


def poison(*_: object) -> None:
    """Half of a matrix of a decoder block turns to its complement."""
    import torch

    from pitstop.models.decoder import Block

    block = next(found for found in gc.get_objects() if isinstance(found, Block))
    weights = block.feed_forward.down.data.view(-1).view(torch.uint8)
    half = weights[: weights.numel() // 2]
    half.copy_(255 - half)


def poison_probes(*_: object) -> None:
    """Tokens for probes are others than those computed."""
    import msgspec

    import __main__ as worker

    send = worker.send

    def other(output: object) -> object:
        return msgspec.structs.replace(output, tokens=[token ^ 1 for token in output.tokens])

    def falsified(sock: object, message: object) -> None:
        if isinstance(message, worker.Step):
            outputs = [other(output) if output.id.startswith("probe-") else output for output in message.outputs]
            message = msgspec.structs.replace(message, outputs=outputs)
        send(sock, message)

    worker.send = falsified


if "pitstop.engine.worker" in sys.orig_argv:
    signal.signal(signal.SIGUSR1, poison)
    signal.signal(signal.SIGUSR2, poison_probes)
