"""The engine worker process: `python -m pitstop.engine.worker FD`, FD an inherited socket to the front (engine/protocol.py).

It waits in the kernel while idle, takes what has arrived between steps, and exits at end of file: a worker never outlives its front.
`python -m pitstop.engine.worker FD background`: at low priority until it is called forward (Commands.forward).
"""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import socket
import sys
import time
from typing import Any

from pitstop import __version__
from pitstop.config import EngineConfig
from pitstop.engine import background
from pitstop.engine.protocol import PROTOCOL, Commands, Failed, Ready, Start, Step, ToWorker, disagreement, receive, send
from pitstop.engine.recorder import Recorder
from pitstop.errors import InvalidRequest, PitstopError
from pitstop.types import Output

log = logging.getLogger(__name__)

CHECK_INTERVAL = 10.0
"""Seconds between audits of the cache while idle."""


def main(sock: socket.socket, behind: bool = False) -> int:
    """Serve one front until it goes. Returns the exit status. behind: at low priority until the front calls."""
    service = _Service(sock)
    status = background.run(service.run) if behind else None
    return service.run() if status is None else status


class _Service:
    """An engine and its front."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._incarnation = 0
        self._engine: Any = None
        self._taken = 0

    def run(self) -> int | None:
        """Begin, or go on, on this thread. Returns the exit status, or None when the front called the worker forward."""
        if self._engine is None:
            if not self._start():
                return 1
        else:
            from pitstop.ops import dispatch

            dispatch.set_threads(self._engine.config.threads)  # anew, by this thread: they inherit its priority
        return self._serve()

    def _start(self) -> bool:
        with contextlib.suppress(Exception):  # takes a second, which the front needs too; what fails here fails again below, and is told
            import pitstop.engine.core  # noqa: F401
        start = receive(self._sock, ToWorker)
        if not isinstance(start, Start):
            return False
        self._incarnation = start.incarnation
        if reason := disagreement(start.protocol, PROTOCOL, __version__):
            send(self._sock, Failed(start.incarnation, reason))
            return False
        try:
            self._engine = engine = _load(start.config)
            pace = engine.warm_up()
            if start.recorder >= 0:
                engine.recorder = Recorder(start.recorder)
        except Exception as error:  # whatever it is, the front must learn why nothing will come
            log.debug("start failed", exc_info=True)
            message = str(error) if isinstance(error, PitstopError) else f"{type(error).__name__}: {error}"
            send(self._sock, Failed(start.incarnation, message))
            return False
        facts = engine.context, engine.capacity, engine.vocab_size, engine.notes(), engine.attended_cost, pace
        identity = {
            "numerics": engine.numerics,
            "weights": engine.weights,
            "shared": engine.shared,
            "kv_memory": 0 if engine.scheduler.whole else engine.config.kv.memory,
            "device": engine.config.device,
            "generates": not engine.scheduler.whole,
            "adapters": engine.adapter_states,
        }
        send(self._sock, Ready(start.incarnation, *facts, protocol=PROTOCOL, version=__version__, **identity))
        return True

    def _serve(self) -> int | None:
        sock, engine, incarnation = self._sock, self._engine, self._incarnation
        checked = time.monotonic()
        called = False
        while not called:
            wait = 0 if engine.busy or engine.adapters.busy else CHECK_INTERVAL
            outputs: list[Output] = []
            begin, work, lent = None, 0.0, -1
            while select.select([sock], [], [], wait)[0]:  # all that has come: what is cancelled need not wait for another step
                begin = begin or time.monotonic()
                message = receive(sock, ToWorker)
                if message is None:
                    return 0
                if message.incarnation != incarnation or not isinstance(message, Commands):
                    raise RuntimeError(f"a message that is not for incarnation {incarnation}: {message!r:.100}")
                outputs += _apply(engine, message)
                self._taken += len(message.submit)
                called |= message.forward
                lent = engine.lend(message.lend) if message.lend >= 0 else lent
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
                times = work, time.monotonic() - begin, engine.ahead(), self._taken
                send(sock, Step(incarnation, outputs, engine.stats(), admitted, preempted, *times, engine.adapters.advance(), lent))
            except OSError:
                return 0  # the front is gone
        return None


def _load(config: EngineConfig):
    from pitstop.engine.core import open_engine  # torch: after the socket is ours, so that a failure to import is reported
    from pitstop.models.weights.source import open_model

    return open_engine(config, open_model(config.model))


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
    sys.exit(main(socket.socket(fileno=int(sys.argv[1])), "background" in sys.argv[2:]))
