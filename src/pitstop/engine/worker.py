"""The engine worker process: `python -m pitstop.engine.worker FD`, FD an inherited socket to the front (engine/protocol.py).

It waits in the kernel while idle, takes what has arrived between steps, and exits at end of file: a worker never outlives its front.
"""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import socket
import sys
import time

from pitstop import __version__
from pitstop.config import EngineConfig
from pitstop.engine.protocol import PROTOCOL, Commands, Failed, Ready, Start, Step, ToWorker, disagreement, receive, send
from pitstop.engine.recorder import Recorder
from pitstop.errors import InvalidRequest, PitstopError
from pitstop.types import Output

log = logging.getLogger(__name__)

CHECK_INTERVAL = 10.0
"""Seconds between audits of the cache while idle."""


def main(sock: socket.socket) -> int:
    """Serve one front until it goes. Returns the exit status."""
    with contextlib.suppress(Exception):  # takes a second, which the front needs too; what fails here fails again below, and is told
        import pitstop.engine.core  # noqa: F401
    start = receive(sock, ToWorker)
    if not isinstance(start, Start):
        return 1
    if reason := disagreement(start.protocol, PROTOCOL, __version__):
        send(sock, Failed(start.incarnation, reason))
        return 1
    try:
        engine = _load(start.config)
        pace = engine.warm_up()
        if start.recorder >= 0:
            engine.recorder = Recorder(start.recorder)
    except Exception as error:  # whatever it is, the front must learn why nothing will come
        log.debug("start failed", exc_info=True)
        message = str(error) if isinstance(error, PitstopError) else f"{type(error).__name__}: {error}"
        send(sock, Failed(start.incarnation, message))
        return 1
    facts = engine.context, engine.capacity, engine.vocab_size, engine.notes(), engine.attended_cost, pace
    identity = {
        "numerics": engine.numerics,
        "weights": engine.weights,
        "kv_memory": 0 if engine.scheduler.whole else engine.config.kv.memory,
        "device": engine.config.device,
        "generates": not engine.scheduler.whole,
        "adapters": engine.adapter_states,
    }
    send(sock, Ready(start.incarnation, *facts, protocol=PROTOCOL, version=__version__, **identity))
    return _serve(sock, engine, start.incarnation)


def _load(config: EngineConfig):
    from pitstop.engine.core import open_engine  # torch: after the socket is ours, so that a failure to import is reported
    from pitstop.models.weights.source import open_model

    return open_engine(config, open_model(config.model))


def _serve(sock: socket.socket, engine, incarnation: int) -> int:
    checked = time.monotonic()
    taken = 0
    while True:
        wait = 0 if engine.busy or engine.adapters.busy else CHECK_INTERVAL
        outputs: list[Output] = []
        begin, work = None, 0.0
        while select.select([sock], [], [], wait)[0]:  # all that has come: what is cancelled need not wait for another step
            begin = begin or time.monotonic()
            message = receive(sock, ToWorker)
            if message is None:
                return 0
            if message.incarnation != incarnation or not isinstance(message, Commands):
                raise RuntimeError(f"a message that is not for incarnation {incarnation}: {message!r:.100}")
            outputs += _apply(engine, message)
            taken += len(message.submit)
            wait = 0
        if begin is None and not engine.busy and time.monotonic() - checked >= CHECK_INTERVAL:
            engine.check()
            checked = time.monotonic()
            continue
        begin = begin or time.monotonic()
        if engine.busy:
            outputs += engine.step()
            work = engine.work
        admitted, preempted = engine.scheduler.take_changes()
        try:
            times = work, time.monotonic() - begin, engine.ahead(), taken
            send(sock, Step(incarnation, outputs, engine.stats(), admitted, preempted, *times, engine.adapters.advance()))
        except OSError:
            return 0  # the front is gone


def _apply(engine, commands: Commands) -> list[Output]:
    """Submissions, cancels, and changes of adapters; the outputs of those that end at once."""
    outputs = []
    for request in commands.submit:
        try:
            engine.submit(request)
        except InvalidRequest as error:  # the door checks first; this is the engine's own line of defence
            outputs.append(Output(request.id, [], finish="error", message=str(error)))
    for request_id in commands.cancel:
        if output := engine.cancel(request_id):
            outputs.append(output)
    for change in commands.adapters:
        if change.load:
            engine.adapters.begin(change.adapter)
        else:
            outputs += engine.unload(change.adapter)
    return outputs


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the front's to handle
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
