"""The gauges of the server's own processes, against what psutil says of them."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys

import psutil
from servers import Server

from pitstop.server.processes import families, holding

TOLERANCE = 256 << 10  # the kernel keeps the count by CPU and adds it up late


def test_a_process_as_psutil_sees_it():
    process = psutil.Process()
    with mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block, socket.socket():
        block.write(bytes(8 << 20))
        held = holding(os.getpid())
        assert (held.handles, held.threads) == (process.num_fds(), process.num_threads())
        anonymous = sum(mapping.anonymous for mapping in process.memory_maps())
        assert abs(held.anonymous - anonymous) < TOLERANCE
        held = holding(os.getpid())
    assert abs(held.anonymous - holding(os.getpid()).anonymous - (8 << 20)) < TOLERANCE


def test_a_process_that_has_gone_or_is_not_reaped_yet():
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    child.stdout.read()  # until it has exited, which frees its memory
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert holding(child.pid) is None
    child.wait()
    child.stdout.close()
    assert holding(child.pid) is None
    assert {sample.labels["process"] for family in families([child.pid]) for sample in family.samples} == {"front"}


def test_front_and_worker_are_both_in_the_metrics(server: Server):
    front = psutil.Process(server.process.pid)
    (worker,) = front.children()
    for label, process in (("front", front), ("worker", worker)):
        value = server.metric(f'pitstop_process_anonymous_bytes{{process="{label}"}}')
        assert abs(value - sum(mapping.anonymous for mapping in process.memory_maps())) < TOLERANCE
        assert server.metric(f'pitstop_process_threads{{process="{label}"}}') == process.num_threads()
    assert server.metric('pitstop_process_open_handles{process="worker"}') == worker.num_fds()
