"""Work of low priority, and a real worker that begins with it."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
import toy_gguf

from pitstop.config import EngineConfig, KVConfig
from pitstop.engine import background
from pitstop.engine.protocol import PROTOCOL, Commands, Ready, Start, Step, ToFront, receive, send
from pitstop.pool.probe import probe_request
from pitstop.pool.worker import spawn

LENGTH = 12  # of an answer, in tokens


def nice(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def own_nice() -> int:
    return nice(threading.get_native_id())


def test_the_callers_priority_stays_and_that_of_the_work_and_its_threads_is_low():
    before = own_nice()
    seen = []

    def work() -> str:
        seen.append(own_nice())
        child = threading.Thread(target=lambda: seen.append(own_nice()))
        child.start()
        child.join()
        return "done"

    assert background.run(work) == "done"
    assert seen == [max(before, background.NICE)] * 2
    assert own_nice() == before


@pytest.mark.parametrize("error", [None, FileNotFoundError(2, ""), PermissionError(13, ""), OSError(22, ""), OSError(30, "")])
def test_where_groups_cannot_be_set_the_work_is_done(monkeypatch: pytest.MonkeyPatch, error: OSError | None):
    written = []

    class Group:
        def write_text(self, nice: str) -> None:
            written.append(nice)
            if error is not None:
                raise error
            if len(written) % 2:  # too often
                raise BlockingIOError(11, "")

    monkeypatch.setattr(background, "_GROUP", Group())
    monkeypatch.setattr(os, "getsid", lambda pid: os.getpid())
    assert background.run(lambda: "done") == "done"
    low, normal = str(background.NICE), "0"
    assert written == ([low, normal] if error is not None else [low, low, normal, normal])


def test_what_the_work_raises_is_raised():
    def work() -> None:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        background.run(work)


def test_a_worker_in_the_background_comes_forward_and_answers_as_before(tmp_path: Path, all_cores: None):
    toy = toy_gguf.write_toy_gguf(tmp_path / "toy.gguf")
    sock, process, plans = spawn(background=True)
    try:
        config = EngineConfig(str(toy), device="cpu", threads=2, kv=KVConfig(context=256, memory=64 << 20))
        send(sock, Start(1, config, protocol=PROTOCOL))
        assert isinstance(ready := receive(sock, ToFront), Ready), ready
        first, low = watched(sock, process.pid)
        assert set(low) == {background.NICE}
        send(sock, Commands(1, forward=True))
        assert receive(sock, ToFront).outputs == []
        again, high = watched(sock, process.pid)
        assert again == first
        assert set(high) == {own_nice()}
        assert group_nice(process.pid) in (0, None)
    finally:
        sock.close()
        os.close(plans)
        assert process.wait(10) == 0


def watched(sock: socket.socket, pid: int) -> tuple[list[int], list[int]]:
    """An answer, and the priority of each thread that has computed for it: one that wakes now and then to look at the time has not."""
    tokens = answer(sock)
    before = used(pid)
    assert answer(sock) == tokens
    spent = {thread: time - before[thread] for thread, time in used(pid).items()}
    return tokens, [nice(thread) for thread, time in spent.items() if time > sum(spent.values()) / 50]


def used(pid: int) -> dict[int, int]:
    """Nanoseconds of processor time of each thread."""
    return {int(thread.name): int((thread / "schedstat").read_text().split()[0]) for thread in Path(f"/proc/{pid}/task").iterdir()}


def group_nice(pid: int) -> int | None:
    """Of the autogroup, where there are those."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
    except (OSError, IndexError):
        return None


def answer(sock: socket.socket) -> list[int]:
    """Greedy tokens, from the real engine."""
    send(sock, Commands(1, submit=[probe_request(list(range(5, 45)), LENGTH, 60.0)]))
    tokens = []
    while len(tokens) < LENGTH:
        step = receive(sock, ToFront)
        assert isinstance(step, Step)
        for output in step.outputs:
            tokens += output.tokens
    return tokens
