"""The server's processes on this machine: found by the port they listen on or by a process id, read without their help."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

import psutil

from pitstop.errors import TargetError

_ANONYMOUS = re.compile(r"^(?:RssAnon|VmSwap):\s*(\d+) kB", re.MULTILINE)

FORWARDERS = {"docker-proxy", "rootlessport", "containerd-shim", "ssh", "sshd", "kubectl", "socat", "nginx", "haproxy", "envoy", "traefik"}
"""Listeners that are not the server: their memory says nothing about it."""


GIVES = ("memory", "handles", "threads", "server_started")


class Tree:
    """A process and all that descend from it."""

    def __init__(self, root: psutil.Process) -> None:
        self.root = root
        self.since = root.create_time()

    def __str__(self) -> str:
        return f"process {self.root.pid} ({self.root.name()}) and its children"

    def lacks(self, counter: str) -> str:
        return "" if counter in GIVES else "a process does not say"

    def close(self) -> None:
        pass

    def read(self) -> dict[str, float]:
        """memory (anonymous, resident and swapped out, bytes), handles and threads of all together; server_started in Unix seconds.

        Raises TargetError when the process has gone or may not be read.
        """
        try:
            if not self.root.is_running() or self.root.status() == psutil.STATUS_ZOMBIE:
                raise psutil.NoSuchProcess(self.root.pid)
            sums = dict.fromkeys(("memory", "handles", "threads"), 0.0)
            for process in self._members():
                try:
                    held = (anonymous(process), process.num_fds(), process.num_threads())
                except psutil.NoSuchProcess:
                    if process == self.root:
                        raise
                    continue  # it ended just now
                for name, value in zip(sums, held, strict=True):
                    sums[name] += value
        except psutil.NoSuchProcess:
            raise TargetError(f"process {self.root.pid} has ended") from None
        except (psutil.AccessDenied, PermissionError):
            raise TargetError(f"process {self.root.pid} may not be read; run this as the server's user") from None
        return sums | {"server_started": self.since}

    def _members(self) -> list[psutil.Process]:
        return [self.root, *self.root.children(recursive=True)]


def anonymous(process: psutil.Process) -> int:
    """Bytes of anonymous memory, resident and swapped out, from /proc/PID/status; the unique set size where there is no /proc."""
    if not psutil.LINUX:
        return process.memory_full_info().uss
    try:
        with open(f"/proc/{process.pid}/status") as file:
            return 1024 * sum(map(int, _ANONYMOUS.findall(file.read())))
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(process.pid) from None


def find(url: str, pid: int | None) -> Tree | str:
    """The server's processes, or why they are not known. Raises TargetError when there is no process `pid`."""
    if pid is not None:
        try:
            return Tree(psutil.Process(pid))
        except psutil.NoSuchProcess:
            raise TargetError(f"there is no process {pid}; --pid wants the server's main process") from None
    address = urlsplit(url)
    if not _loopback(address.hostname or ""):
        return "the server is on another machine"
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        listening = {c.pid for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port == port} - {None}
    except psutil.AccessDenied:
        listening = set()
    if not listening:
        return f"the process that listens on port {port} is not visible to this user; name it by --pid"
    processes = [psutil.Process(listener) for listener in listening]
    root = min(processes, key=lambda process: len(process.parents()))  # of workers that share a socket, the one that made it
    if root.name() in FORWARDERS:
        return f"{root.name()} listens on port {port} for somebody else; name the server's process by --pid"
    return Tree(root)


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
