"""One worker incarnation: the process, its socket, and the two threads that wait on it, so that the event loop never does."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from pitstop.config import EngineConfig
from pitstop.engine import recorder
from pitstop.engine.protocol import PROTOCOL, AdapterChange, Commands, Failed, Ready, Start, Step, ToFront, receive, send
from pitstop.engine.recorder import RecordedPlan
from pitstop.types import Request

log = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "pitstop.engine.worker")
"""The worker program; it gets the number of its socket's file descriptor as last argument."""


class Lend(NamedTuple):
    """So many bytes of the KV cache."""

    size: int


_Command = Request | str | AdapterChange | Lend | bool  # to be submitted, an id to be cancelled, or else; True: come forward

_EXIT_GRACE = 5.0  # seconds between end of file and SIGKILL


class Process(NamedTuple):
    """A worker process that waits for its Start message and imports meanwhile. Closing the socket ends it.

    plans: file descriptor of the memory in which it records what it runs.
    """

    socket: socket.socket
    process: subprocess.Popen[bytes]
    plans: int


def spawn(command: Sequence[str] = WORKER_COMMAND, background: bool = False) -> Process:
    """Start a worker process, in the background (engine.background) or not. Raises OSError when it cannot be started."""
    ours, theirs = socket.socketpair()
    plans = recorder.memory()
    try:
        with theirs:
            # A session of its own: Ctrl-C in the terminal reaches the front only, which then drains.
            words = [*command, str(theirs.fileno()), *(["background"] if background else [])]
            process = subprocess.Popen(words, pass_fds=[theirs.fileno(), plans], start_new_session=True)
    except OSError:
        ours.close()
        os.close(plans)
        raise
    return Process(ours, process, plans)


class Worker:
    """A running worker process, told to start.

    `on_message` and then, once, `on_exit` are called on the reader thread; `on_exit` comes after the process has been reaped.
    """

    def __init__(
        self,
        incarnation: int,
        config: EngineConfig,
        process: Process,
        on_message: Callable[[Worker, Ready | Step | Failed], None],
        on_exit: Callable[[Worker], None],
    ) -> None:
        self.incarnation = incarnation
        self._on_message = on_message
        self._on_exit = on_exit
        self._commands: SimpleQueue[_Command | None] = SimpleQueue()
        self._socket, self._process, self._plans = process
        self.last_plans: list[RecordedPlan] = []
        """What it ran last, known once it has ended."""
        self.condemned = False
        """Whether it was killed because it computed wrongly."""
        self._shot = False
        self._writer = threading.Thread(
            target=self._write, args=[Start(incarnation, config, process.plans, PROTOCOL)], name=f"worker-{incarnation}-writer", daemon=True
        )
        self._reader = threading.Thread(target=self._read, name=f"worker-{incarnation}-reader", daemon=True)
        self._writer.start()
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> str:
        """How the process ended, for the log."""
        code = self._process.returncode
        if code is None:
            return "is still running"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"

    @property
    def crashed(self) -> bool:
        """Whether it ended by its own fault: not killed from outside, or shot because it hung."""
        return self._shot or self._process.returncode not in (-signal.SIGKILL, -signal.SIGTERM)

    def submit(self, request: Request) -> None:
        self._commands.put(request)

    def cancel(self, request_id: str) -> None:
        self._commands.put(request_id)

    def change(self, change: AdapterChange) -> None:
        self._commands.put(change)

    def call_forward(self) -> None:
        """Take it out of the background."""
        self._commands.put(True)

    def lend(self, size: int) -> None:
        """See Commands.lend."""
        self._commands.put(Lend(size))

    def stop(self) -> None:
        """Close the line: the worker exits on end of file, and is killed if it does not within a few seconds. Returns at once."""
        self._commands.put(None)
        with contextlib.suppress(OSError):  # it was gone already
            self._socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """SIGKILL the worker and whatever it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # the reader thread is just reaping it
                os.killpg(self._process.pid, signal.SIGKILL)

    def shoot(self) -> None:
        """SIGKILL a worker that hangs."""
        self._shot = True
        self.kill()

    def condemn(self) -> None:
        """SIGKILL a worker that computes wrongly."""
        self.condemned = True
        self.kill()

    def join(self) -> None:
        """Wait until process and threads have ended."""
        self._reader.join()

    def _write(self, start: Start) -> None:
        """Send what is queued, in one message per wake-up."""
        try:
            send(self._socket, start)
            while (first := self._commands.get()) is not None:
                batch = self._batch(first)
                kinds = Request, str, AdapterChange, Lend
                *parts, lends = ([command for command in batch if isinstance(command, kind)] for kind in kinds)
                forward, lend = any(command is True for command in batch), lends[-1].size if lends else -1
                send(self._socket, Commands(self.incarnation, *parts, forward, lend))
        except OSError:  # the reader sees the end of file and reports it
            pass
        except Exception:
            log.exception("a command for worker %d cannot be sent; it is killed", self.incarnation)
            self.kill()

    def _batch(self, first: _Command) -> list[_Command]:
        batch = [first]
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return batch
            if command is None:
                self._commands.put(None)
                return batch
            batch.append(command)

    def _read(self) -> None:
        try:
            while (message := receive(self._socket, ToFront)) is not None:
                if message.incarnation == self.incarnation:
                    self._on_message(self, message)
        except OSError:  # stop() closed the line
            pass
        except Exception:  # a message that makes no sense; nothing after it can be trusted
            log.exception("the messages of worker %d cannot be read on; it is killed", self.incarnation)
            self.kill()
        finally:
            self.stop()
            self._reap()
            self._on_exit(self)

    def _reap(self) -> None:
        try:
            self._process.wait(_EXIT_GRACE)
        except subprocess.TimeoutExpired:
            log.warning("worker %d did not exit within %g s; it is killed", self.incarnation, _EXIT_GRACE)
            self.kill()
            self._process.wait()
        self._writer.join()
        self._socket.close()
        self.last_plans = recorder.read(self._plans)
        os.close(self._plans)
