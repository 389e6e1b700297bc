"""Whole soaks of the real front before a fake worker: short ones here, the two minutes in the slow tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest
from servers import Server, fake_server, until

from pitstop.verify import soak
from pitstop.verify.outcome import Check, Outcome
from pitstop.verify.slo import SoakLimits
from pitstop.verify.soak import exposition, record
from pitstop.verify.soak.counters import METRICS, Counters
from pitstop.verify.soak.judge import judge
from pitstop.verify.target import Target, connect

SHORT = soak.Plan(seconds=3)
NO_GROWTH = SoakLimits(memory_kb_per_request=None, handles_per_hour=None, threads_per_hour=None)  # seconds cannot tell


def check(outcome: Outcome, name: str) -> Check:
    (found,) = [check for check in outcome.checks if check.name == f"soak.{name}"]
    return found


@pytest.mark.alone  # in eight seconds there must be eight idle moments
def test_what_lasts_is_caught_and_what_does_not_passes():
    with fake_server("--lasting", "handles=40", "--lasting", "threads=50", "--lasting", "drift=200") as server:
        seen = []
        outcome = soak.run(connect(server.url), SoakLimits(memory_kb_per_request=None), soak.Plan(seconds=8), report=seen.append)
    assert [failed.name for failed in outcome.failures] == ["soak.handles", "soak.threads", "soak.drifted_answers"], outcome.failures
    first, last = outcome.figures["first"], outcome.figures["last"]
    unsure = 2  # of them: what was aborted before the server saw it counts as a request, and a connection more or less is open
    assert last["handles"] - first["handles"] >= outcome.figures["requests"] // 40 - unsure
    assert last["threads"] - first["threads"] >= outcome.figures["requests"] // 50 - unsure
    assert "instead of" in check(outcome, "drifted_answers").reason
    tally = outcome.figures["tally"]
    assert sum(count for name, count in tally.items() if name not in ("canaries", "drifted")) == outcome.figures["requests"]
    assert min(tally[name] for name in ("answered", "aborted", "rejected", "canaries")) > 10
    assert [round(now.left) for now in seen] == sorted((round(now.left) for now in seen), reverse=True)
    assert seen[-1].requests == outcome.figures["requests"]


def test_an_interrupted_soak_goes_on_where_it_was(tmp_path: Path):
    state, result = tmp_path / "state.jsonl", tmp_path / "result.json"
    with fake_server() as server:
        command = [sys.executable, "-m", "pitstop.cli", "verify", "soak", server.url, "--seconds", "4", "--seed", "5"]
        process = subprocess.Popen([*command, "--state", str(state), "--json", str(result)], stdout=subprocess.PIPE, text=True)
        until(lambda: state.exists() and state.read_bytes().count(b"\n") > 4, 30)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=20)
        assert process.returncode == 130, said
        assert "Interrupted after" in said
        first = msgspec.json.decode(result.read_bytes(), type=Outcome)
        half = record.reopen(state)
        assert first.figures["interrupted"]
        assert first.figures["requests"] == half.samples[-1].requests
        until(lambda: server.metric("pitstop_requests_running") == 0, 2)

        outcome = soak.resume(connect(server.url), NO_GROWTH, state)
    whole = record.reopen(state)
    assert (whole.header, whole.samples[: len(half.samples)]) == (half.header, half.samples)
    assert whole.header.plan == soak.Plan(seconds=4, seed=5)
    assert outcome.passed, outcome.failures
    assert 4 <= outcome.seconds < 8
    numbers = [sample.number for sample in whole.samples]
    assert numbers == sorted(set(numbers))
    assert judge(whole, NO_GROWTH, outcome.seconds) == outcome  # the file is all that the verdict is made of


def test_rounds_without_time_for_a_request_repeat_nobodys_prompts(tmp_path: Path):
    state = tmp_path / "state.jsonl"
    with fake_server() as server:
        soak.run(connect(server.url), NO_GROWTH, soak.Plan(seconds=2, rate=0.01), state)
    numbers = [sample.number for sample in record.reopen(state).samples]
    assert len(numbers) > 2
    assert numbers == list(range(len(numbers)))  # one for each crowd


def test_a_resumed_soak_knows_the_server_and_its_restarts(tmp_path: Path):
    state = tmp_path / "state.jsonl"
    with fake_server() as server:
        soak.run(connect(server.url), NO_GROWTH, soak.Plan(seconds=1.5), state)
        target = connect(server.url)
    lines = state.read_bytes().splitlines(keepends=True)
    state.write_bytes(b"".join(lines[:2]))
    with fake_server() as server:
        here = msgspec.json.decode(lines[0], type=record.Header)
        with pytest.raises(Exception, match="is a soak of toy at"):
            soak.resume(connect(server.url), NO_GROWTH, state)
        moved = msgspec.structs.replace(here, target=here.target | {"url": server.url})
        state.write_bytes(msgspec.json.encode(moved) + b"\n" + lines[1])
        outcome = soak.resume(connect(server.url), NO_GROWTH, state)
    assert target.url != server.url
    assert [failed.name for failed in outcome.failures] == ["soak.restarts"]


def test_a_worker_that_dies_is_a_restart():
    killed = []

    def kill(now: soak.Progress) -> None:
        if len(killed) < 1 and now.left < 2.5:
            (worker,) = psutil.Process(server.process.pid).children()
            worker.kill()
            killed.append(worker)

    with fake_server() as server:
        outcome = soak.run(connect(server.url), NO_GROWTH, SHORT, report=kill)
    assert check(outcome, "restarts").value == 1


def test_a_counter_that_cannot_be_read_any_more_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pitstop.verify.soak.tier.READABLE_WITHIN", 0.3)
    with fake_server("--lasting", "blind=60") as server:
        outcome = soak.run(connect(server.url), NO_GROWTH, SHORT)
    assert "/metrics answered 500" in check(outcome, "running").reason
    assert {failed.name for failed in outcome.failures} == {
        f"soak.{name}" for name in ("running", "waiting", "kv_pages", "kv_tails", "restarts")
    }


def test_memory_must_be_followed(monkeypatch: pytest.MonkeyPatch):
    with fake_server() as server:
        target = connect(server.url)
        monkeypatch.setattr("pitstop.verify.soak.processes._loopback", lambda host: False)
        monkeypatch.setitem(METRICS, "memory", (("other:memory",),))
        outcome = soak.run(target, SoakLimits(), SHORT)
    (failed,) = outcome.checks
    assert (failed.name, failed.passed) == ("soak.memory", False)
    assert failed.reason == "cannot be followed: the server is on another machine"


def test_metrics_and_processes_say_the_same(server: Server, monkeypatch: pytest.MonkeyPatch):
    target = connect(server.url)
    near = Counters(target, None)
    assert near.followed["memory"] == f"process {server.process.pid} (python) and its children"
    with monkeypatch.context() as patched:
        patched.setattr("pitstop.verify.soak.processes._loopback", lambda host: False)
        far = Counters(target, None)
    assert far.followed["memory"] == "/metrics"
    assert set(near.followed) == set(far.followed) == set(METRICS)
    (here, unread), (there, unread_there) = near.read(), far.read()
    assert unread == unread_there == {}
    assert here["memory"] == pytest.approx(there["memory"], abs=512 << 10)
    assert abs(here["handles"] - there["handles"]) <= 1  # each has a connection, and reading takes one
    assert here["threads"] == there["threads"]
    assert here["server_started"] == pytest.approx(there["server_started"], abs=1)
    near.close()
    far.close()


def test_other_servers_are_followed_by_their_names(server: Server, monkeypatch: pytest.MonkeyPatch):
    text = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"
    monkeypatch.setattr("pitstop.verify.soak.counters.Exposed._scrape", lambda self: exposition.parse(text))
    counters = Counters(Target(server.url, "toy", facts={"server": "llama.cpp"}), None)
    values, unread = counters.read()
    assert (values["running"], values["waiting"], unread) == (2, 1, {})
    assert counters.not_followed["kv_pages"] == "the server's /metrics do not have it"
    assert "memory" in counters.followed
    counters.close()


@pytest.fixture(scope="module")
def server():
    with fake_server() as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_minutes_catch_a_kilobyte_a_request():
    with fake_server("--fault", "leak=1024") as server:
        outcome = soak.run(connect(server.url), SoakLimits(), soak.Plan())
    assert [failed.name for failed in outcome.failures] == ["soak.memory"]
    assert check(outcome, "memory").reason.startswith("it grows")
    low, high = outcome.figures["slopes_with_interval"]["memory_per_request"][1:]
    assert 1024 < low < high < 1.3 * 1024  # a block has a header, and a list holds it


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_clean_server_passes_twenty_times_in_twenty(tmp_path: Path):
    """Takes 21 minutes, two servers and their soaks at a time, a core each."""

    def passes(seed: int) -> str:
        result = tmp_path / f"{seed}.json"
        with fake_server() as server:
            words = ["verify", "soak", server.url, "--seconds", "120", "--seed", str(seed), "--json", str(result)]
            subprocess.run([sys.executable, "-m", "pitstop.cli", *words], stdout=subprocess.DEVNULL, check=False, timeout=300)
        return "; ".join(failed.reason for failed in msgspec.json.decode(result.read_bytes(), type=Outcome).failures)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(passes, range(20))) == [""] * 20
