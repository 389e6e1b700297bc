"""Fake servers, forked by a process that has imported all that they need, which takes longer than to run most tests of one.

`python tests/nursery.py FD`, FD a socket, is that process. A message is JSON {"words", "environment", "folder", "group"} and three files:
the server's standard output and error, and where its process id comes and, when it has ended, its exit status, a line each.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache
def opened() -> tuple[socket.socket, subprocess.Popen]:
    """This process's nursery, and how to talk to it; it ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, str(Path(__file__)), str(theirs.fileno())]
        return ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)


class Forked:
    """A fake server of this process's nursery, with what subprocess.Popen has for its children. errors: where its stderr goes."""

    def __init__(self, words: list[str], errors: int, environment: Mapping[str, str], group: bool) -> None:
        output, told = os.pipe(), os.pipe()
        wish = {"words": words, "environment": dict(environment), "folder": os.getcwd(), "group": group}
        socket.send_fds(opened()[0], [json.dumps(wish).encode()], [output[1], errors, told[1]])
        os.close(output[1])
        os.close(told[1])
        self.stdout = os.fdopen(output[0])
        self._told = os.fdopen(told[0], "rb", buffering=0)
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = int(self._told.readline())
            self._told.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            select.select([self._told], [], [], timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("a fake server", timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def main(sock: socket.socket) -> None:
    import fake_server

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(sock, 1 << 18, 3)
        if not message:
            return
        if not os.fork():
            sock.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return attend(json.loads(message), *files, fake_server.main)
        for file in files:
            os.close(file)


def attend(wish: dict[str, Any], output: int, errors: int, told: int, serve: Callable[[list[str]], None]) -> None:
    """Be the parent of one server."""
    pid = os.fork()
    if pid:
        os.close(output)
        os.close(errors)
        os.write(told, b"%d\n" % pid)
        os.write(told, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return
    for file, place in ((output, 1), (errors, 2)):
        os.dup2(file, place)
        os.close(file)
    os.close(told)
    if wish["group"]:
        os.setpgid(0, 0)
    os.chdir(wish["folder"])
    os.environ.clear()
    os.environ.update(wish["environment"])
    serve(wish["words"])
    os._exit(0)  # taking apart all that was imported would take as long as the server's own end


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
