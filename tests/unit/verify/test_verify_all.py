"""`pitstop verify URL` and `pitstop verify report`: what they run, write and exit with. The tiers are stood in for, the server is fake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import outcomes
import pytest
import typer
from servers import Server, fake_server

import pitstop.cli
from pitstop.errors import TargetError
from pitstop.verify import suite
from pitstop.verify.outcome import Check, Outcome
from pitstop.verify.report import assemble, read, write
from pitstop.verify.slo import SLO
from pitstop.verify.suite import Stage
from pitstop.verify.target import Target, connect


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server() as server:
        yield server


def run(*arguments: str) -> int:
    """The exit status of `pitstop ARGUMENTS` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pitstop", *arguments])
        with pytest.raises(SystemExit) as ended:
            pitstop.cli.main()
    return ended.value.code or 0


Tiers = dict[str, Callable[[Target], Outcome]]


def fine(tier: str) -> Callable[[Target], Outcome]:
    return lambda target: outcomes.outcome(tier, target.facts)


def failing(target: Target) -> Outcome:
    return outcomes.outcome("load", target.facts, checks=[outcomes.check(passed=False, reason="812 ms", value=812.0, limit=700.0)])


def broken(error: BaseException) -> Callable[[Target], Outcome]:
    def raise_it(target: Target) -> Outcome:
        raise error

    return raise_it


@pytest.fixture
def tiers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tiers:
    """What the tiers do instead; the report goes to tmp_path/out."""
    monkeypatch.chdir(tmp_path)
    made: Tiers = {tier: fine(tier) for tier in ("functional", "load", "soak")}

    monkeypatch.setattr(suite, "same_tokens", lambda a, b: False)

    def stages(target: Target, limits: SLO, lengths: suite.Lengths, seed: int, pid: int | None = None) -> list[Stage]:
        return [Stage(tier, target, seed, lambda show, play=play: play(target)) for tier, play in made.items()]

    monkeypatch.setattr(suite, "stages", stages)
    return made


def result() -> outcomes.Report:
    return read(Path("verify-report/report.json"))


def test_all_tiers_one_verdict_three_files(tiers: Tiers, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", server.url) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-3] == "PASS"
    assert "pitstop verify quality A B" in printed
    assert [outcome.tier for outcome in result().outcomes] == ["functional", "load", "soak"]
    assert result().command == [f"pitstop verify {server.url}"]
    assert result().versions[server.url].startswith("Pitstop ")
    assert sorted(path.name for path in Path("verify-report").iterdir()) == ["junit.xml", "report.html", "report.json"]


def test_a_failed_check_exits_1_and_says_why(tiers: Tiers, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    tiers["load"] = failing
    assert run("verify", server.url, "--out", "here") == 1
    printed = capsys.readouterr().out
    assert "✗ 812 ms" in printed
    assert "load.e2e_p95_ms 812 ms" in printed
    assert printed.splitlines()[-3] == "FAIL"
    assert not read(Path("here/report.json")).passed


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (TargetError("it went away"), "it went away"),
        (ValueError("a planted\nfault"), "ValueError: a planted fault (at test_verify_all.py:"),
        (SystemExit("no more"), "no more"),
        (ImportError("no module"), "ImportError: no module"),
    ],
)
def test_a_tier_that_breaks_is_a_failed_check(tiers: Tiers, server: Server, error: BaseException, says: str) -> None:
    tiers["functional"] = broken(error)
    assert run("verify", server.url) == 1
    assert [outcome.passed for outcome in result().outcomes] == [False, True, True]
    [check] = result().outcomes[0].checks
    assert check.name == "functional.ran"
    assert check.reason.startswith(says)


def test_a_tier_without_checks_is_no_pass(tiers: Tiers, server: Server) -> None:
    tiers["soak"] = lambda target: outcomes.outcome("soak", target.facts, checks=[])
    assert run("verify", server.url) == 1


def test_ctrl_c_writes_what_there_is(tiers: Tiers, server: Server) -> None:
    tiers["load"] = broken(KeyboardInterrupt())
    assert run("verify", server.url) == 130
    assert [(outcome.tier, outcome.passed) for outcome in result().outcomes] == [("functional", True), ("load", False)]
    assert result().outcomes[1].checks[0].reason == "stopped by Ctrl-C before its end"


def test_a_tier_that_took_ctrl_c_itself_is_the_last(tiers: Tiers, server: Server) -> None:
    tiers["load"] = lambda target: outcomes.outcome("load", target.facts, figures={"interrupted": True})
    assert run("verify", server.url) == 130
    assert [outcome.tier for outcome in result().outcomes] == ["functional", "load"]


def test_a_real_signal(server: Server, tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import sys, time
        import pitstop.cli
        from pitstop.verify import suite

        def stages(target, *_):
            def wait(show):
                print("waiting", flush=True)
                time.sleep(60)
            return [suite.Stage("load", target, 0, wait)]

        suite.stages = stages
        sys.argv = ["pitstop", "verify", *sys.argv[1:]]
        pitstop.cli.main()
    """)
    command = [sys.executable, "-c", code, server.url, "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().count("FAIL") == 1
    assert process.returncode == 130
    assert read(tmp_path / "report.json").outcomes[0].checks[0].reason == "stopped by Ctrl-C before its end"


def test_the_second_server_is_shown_and_not_judged(tiers: Tiers, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server() as other:
        tiers["load"] = lambda target: fine("load")(target) if target.url == server.url else failing(target)
        assert run("verify", server.url, "--against", other.url) == 0
    ran = [(outcome.tier, outcome.target["url"] == server.url) for outcome in result().outcomes]
    assert ran == [("functional", True), ("load", True), ("soak", True), ("load", False), ("functional", False)]
    printed = capsys.readouterr().out
    assert "PASS" in printed.splitlines()
    assert "not run" in printed


@pytest.mark.parametrize("same", [True, False])
def test_quality_runs_when_both_split_text_alike(
    same: bool, tiers: Tiers, server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def quality(target: Target, reference: Target, limits: SLO, lengths: suite.Lengths, seed: int) -> Stage:
        facts = target.facts | {"reference_url": reference.url}
        return Stage("quality", target, seed, lambda show: outcomes.outcome("quality", facts, checks=[outcomes.check(passed=False)]))

    monkeypatch.setattr(suite, "same_tokens", lambda a, b: same)
    monkeypatch.setattr(suite, "quality_stage", quality)
    with fake_server() as other:
        assert run("verify", server.url, "--against", other.url) == (1 if same else 0)
        assert [outcome.target["reference_url"] for outcome in result().judged if outcome.tier == "quality"] == [other.url] * same
    assert ("left out" in capsys.readouterr().out) != same


def test_tokenizers_are_compared(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    target = connect(server.url)
    assert suite.same_tokens(target, target)
    monkeypatch.setattr("pitstop.verify.quality.side.Side.tokens", lambda side, text: [ord(side.name)])
    assert not suite.same_tokens(target, target)
    monkeypatch.undo()
    with fake_server("--key", "secret") as closed:
        assert not suite.same_tokens(target, Target(closed.url, "toy"))


def test_limits_and_lengths_reach_the_tiers(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text("load: {e2e_p95_ms: 123}")
    seen = []

    def stages(target: Target, limits: SLO, lengths: suite.Lengths, seed: int, pid: int | None = None) -> list[Stage]:
        seen.append((limits.load.e2e_p95_ms, limits.soak.memory_kb_per_request, lengths, seed, pid, target.model))
        return [Stage("load", target, seed, lambda show: show("it", 1, 2) or fine("load")(target))]

    monkeypatch.setattr(suite, "stages", stages)
    options = [
        "--quick",
        "--slo",
        str(path),
        "--rate",
        "3",
        "--soak",
        "77",
        "--seed",
        "9",
        "--pid",
        "1",
        "--model",
        "toy",
        "--out",
        str(tmp_path / "out"),
    ]
    assert run("verify", *options, server.url) == 0
    assert seen == [(123, 0.25, suite.Lengths(suite.QUICK.load, 77, 3, suite.QUICK.text), 9, 1, "toy")]
    for option, lengths, memory in (("--quick", suite.QUICK, None), ("--seed=0", suite.WHOLE, 0.25)):
        assert run("verify", server.url, option, "--out", str(tmp_path / "out")) == 0
        assert seen.pop() == (700, memory, lengths, 0, None, "toy")


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["127.0.0.1:8000"], 2, "http://127.0.0.1:8000"),
        (["--quick", "localhost:8000"], 2, "http://localhost:8000"),
        (["all", "server"], 2, "http://server"),
        (["load", "10.0.0.1:8000"], 2, "http://10.0.0.1:8000"),
        (["ftp://host"], 2, "begins with http:// or https://"),
        (["laod", "http://127.0.0.1:9"], 2, "No such command 'laod'"),
        (["http://127.0.0.1:9"], 1, "is the server up?"),
        (["http://127.0.0.1:9", "--slo", "absent.yaml"], 1, "absent.yaml: No such file"),
        (["http://127.0.0.1:9", "--seed", "-1"], 2, "--seed"),
        (["http://127.0.0.1:9", "--bogus"], 2, "--bogus"),
        (["report", "absent.json"], 1, "absent.json: No such file"),
        (["report"], 2, "Missing argument"),
    ],
)
def test_wrong_usage_says_what_to_do(
    arguments: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert run("verify", *arguments) == status
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["http://127.0.0.1:9", "-h"], ["-h", "http://127.0.0.1:9"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", *arguments) == 0
    assert "Usage: pitstop verify" in capsys.readouterr().out


def test_every_verb_and_option_has_a_help_text() -> None:
    for name, verb in typer.main.get_command(pitstop.cli.app).commands["verify"].commands.items():
        assert verb.help, name
        for parameter in verb.params:
            assert parameter.help, f"{name} {parameter.name}"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run("verify", "http://127.0.0.1:9") == 1
    assert "-e '.[verify]'" in capsys.readouterr().err


def test_results_become_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = outcomes.outcome(), outcomes.outcome(target=outcomes.THEIRS, checks=[Check(name="load.x", passed=False, reason="no")])
    _, first, _ = write(assemble(["pitstop", "a"], [good]), tmp_path / "a")
    (second := tmp_path / "b.json").write_bytes(msgspec.json.encode(bad))  # one tier's outcome, as `verify load --json` writes it
    page = tmp_path / "page.html"
    assert run("verify", "report", str(first), str(second), "-o", str(page)) == 0
    assert "llama.cpp" in page.read_text(encoding="utf-8")
    assert run("verify", "report", str(second), str(first), "-o", str(page)) == 1
    assert run("verify", "report", str(first), "-o", str(tmp_path / "absent" / "page.html")) == 1
    assert "page.html: No such file" in capsys.readouterr().err


def test_the_tiers_are_these(server: Server) -> None:
    made = suite.stages(connect(server.url), SLO(), suite.QUICK, 0)
    assert [stage.tier for stage in made] == ["functional", "load", "soak"]
