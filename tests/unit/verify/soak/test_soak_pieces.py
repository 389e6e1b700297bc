"""Plan, requests, state file, counters: each by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import psutil
import pytest
from typer.testing import CliRunner

from pitstop.cli import app
from pitstop.errors import ConfigError, PitstopError, TargetError
from pitstop.verify.soak import exposition, processes, record
from pitstop.verify.soak.plan import Plan
from pitstop.verify.soak.record import Header, Sample
from pitstop.verify.soak.requests import BAD, MIXTURE, canary, crowd, draw


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"seconds": 0.5}, "a second to a year"),
        ({"seconds": float("nan")}, "a second"),
        ({"rate": 0}, "--rate"),
        ({"clients": 0}, "--clients"),
    ],
)
def test_nonsense_is_no_plan(fields: dict, names: str):
    with pytest.raises(ConfigError, match=names):
        Plan(**fields)


def test_requests_are_a_function_of_seed_and_number():
    asks = [draw(7, number, "m", 512) for number in range(3000)]
    assert asks == [draw(7, number, "m", 512) for number in range(3000)]
    assert asks != [draw(8, number, "m", 512) for number in range(3000)]
    bodies = [ask.body for ask in asks if ask.kind not in ("canary", "broken")]
    assert len(set(bodies)) == len(bodies)
    assert {ask.kind for ask in asks[: len(MIXTURE)]} == set(MIXTURE)
    shares = Counter(ask.kind for ask in asks)
    assert sum(MIXTURE.values()) == pytest.approx(1)
    assert all(abs(shares[kind] / 3000 - share) < 0.03 and shares[kind] for kind, share in MIXTURE.items())


def test_requests_are_what_they_are_called():
    for ask in (draw(1, number, "m", 512) for number in range(2000)):
        if ask.kind == "broken":
            with pytest.raises(ValueError):  # noqa: PT011
                json.loads(ask.body)
            continue
        fields = json.loads(ask.body)
        assert ("messages" in fields) == (ask.path == "/v1/chat/completions")
        assert fields.get("stream", False) == (ask.kind in ("streamed", "abort after first", "abort early"))
        assert (fields["model"] == "m") == (ask.kind != "unknown model")
        assert (len(ask.body) > 4 * 512) == (ask.kind == "too long")
        assert 0 <= ask.patience <= 0.05
        if ask.kind not in BAD and ask.kind != "canary":
            assert len(str(fields.get("prompt") or fields["messages"][0]["content"]).encode()) < 400
    assert len(json.loads(crowd(1, "5.1", "m", 512).body)["prompt"].encode()) + 128 < 512
    assert json.loads(canary(2, "m", logprobs=False).body).keys().isdisjoint({"logprobs", "seed"})


def header() -> Header:
    about = {"target": {"url": "http://toy", "model": "toy"}, "started": 1.0, "followed": {}, "not_followed": {}, "context": 512}
    return Header(plan=Plan(seconds=60, rate=3, seed=4), answers=["a"], logprobs=[[-0.5]], **about)


def samples() -> list[Sample]:
    return [Sample(seconds=i, number=10 * i, requests=9 * i, readings={"memory": i}, tally={"answered": i}) for i in range(3)]


def test_a_state_file_holds_the_record(tmp_path: Path):
    path = tmp_path / "soak.jsonl"
    kept = record.begin(header(), path)
    for sample in samples():
        kept.add(sample)
    again = record.reopen(path)
    assert (again.header, again.samples) == (header(), samples())
    with pytest.raises(ConfigError, match="--resume"):
        record.begin(header(), path)


def test_a_line_that_was_cut_off_is_taken_away(tmp_path: Path):
    path = tmp_path / "soak.jsonl"
    kept = record.begin(header(), path)
    for sample in samples():
        kept.add(sample)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    again = record.reopen(path)
    assert again.samples == samples()[:2]
    again.add(samples()[2])
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"no json\n", msgspec.json.encode(header()) + b"\n", msgspec.json.encode(header()) + b"\n{}\n"]
)
def test_what_is_no_state_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(ConfigError, match="state"):
        record.reopen(tmp_path / "state")
    with pytest.raises(ConfigError, match="No such file"):
        record.reopen(tmp_path / "none")


def test_prometheus_text():
    found = exposition.parse(
        '# HELP a what\na 1\nb{x="1",y="a \\" } b"} 2.5e3 1700000000\nb{x="2"} NaN\nc{stage="run"} 4\nc{stage="wait"} 5\nd{ 7\ne{} x\n'
    )
    assert exposition.total(found, "a") == 1
    assert exposition.total(found, 'b{x="1"}') == 2500
    assert exposition.total(found, "c") == 9
    assert exposition.total(found, 'c{stage="wait"}') == 5
    assert exposition.total(found, 'c{stage="none"}') is None
    assert exposition.total(found, "d") is None
    assert exposition.total(found, "e") is None


def test_a_process_and_its_children():
    code = "import subprocess, sys; kept = bytearray(8 << 20); child = subprocess.Popen([sys.executable, '-c', {}], stdin=0); child.wait()"
    child = "'kept = bytearray(16 << 20); print(flush=True); input()'"
    with subprocess.Popen([sys.executable, "-c", code.format(repr(child)[1:-1])], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        tree = processes.find("http://elsewhere", process.pid)
        read = tree.read()
        members = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
        assert len(members) == 2
        assert read["memory"] == pytest.approx(sum(m.anonymous for member in members for m in member.memory_maps()), abs=512 << 10)
        assert read["memory"] > 24 << 20
        assert read["handles"] == sum(member.num_fds() for member in members)
        assert read["threads"] == sum(member.num_threads() for member in members)
        process.stdin.write(b"\n")
    with pytest.raises(TargetError, match=f"process {process.pid} has ended"):
        tree.read()


def test_whose_memory_is_followed(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(TargetError, match="no process 4194304"):
        processes.find("http://127.0.0.1:1", 4194304)
    assert processes.find("http://example.com:80", None) == "the server is on another machine"
    assert "port 1 is not visible" in processes.find("http://localhost:1", None)
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        assert processes.find(url, None).root.pid == os.getpid()
        monkeypatch.setattr(processes, "FORWARDERS", {psutil.Process().name()})
        assert "for somebody else; name the server's process by --pid" in processes.find(url, None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--hours", "1", "--seconds", "9"], "give --hours or --seconds, not both"),
        (["--resume", "x.jsonl", "--seed", "3"], "leave out --seed"),
        (["--resume", "x.jsonl", "--state", "y.jsonl"], "leave out --state"),
        (["--seconds", "-5"], "a second to a year"),
        (["--slo", "none.yaml"], "none.yaml: No such file"),
        ([], "http://127.0.0.1:1 does not answer"),
    ],
)
def test_the_command_refuses_what_it_cannot_honour(options: list[str], says: str):
    result = CliRunner().invoke(app, ["verify", "soak", "http://127.0.0.1:1", *options])
    assert isinstance(result.exception, PitstopError)
    assert says in str(result.exception)
