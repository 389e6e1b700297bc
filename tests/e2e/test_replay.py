"""`pitstop replay` on a toy model: what a worker ran last runs again, and gives what it gave."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from foresight import computed
from toy_gguf import write_toy_gguf

from pitstop import LLM, SamplingParams
from pitstop.config import EngineConfig, KVConfig
from pitstop.engine import crash, recorder
from pitstop.engine import replay as engine_replay
from pitstop.engine.recorder import RecordedPlan, Recorder
from pitstop.types import Request


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_toy_gguf(tmp_path / "toy.gguf", tied=False)


def record(model: Path, prompts: bool, directory: Path, speculate: int = 0) -> tuple[Path, dict[str, list[int]]]:
    """Four requests of several chunks, cut off after 50 steps; the file, and the answers as far as anybody heard of them.

    With guesses: greedy, so that the model repeats itself.
    """
    config = EngineConfig(model=str(model), prefill_chunk=64, max_running=3, speculate=speculate, kv=KVConfig(context=600, memory=1 << 21))
    engine = LLM(model, prefill_chunk=64, max_running=3, speculate=speculate, context=600, memory=1 << 21).engine
    fd = recorder.memory()
    engine.recorder = Recorder(fd)
    params = SamplingParams(max_tokens=180 if speculate else 60, temperature=0.0 if speculate else 1.0, ignore_eos=bool(speculate))
    requests = {
        f"r{i}": Request(
            id=f"r{i}", prompt=[(7 * i + j) % 250 for j in range(length)], params=msgspec.structs.replace(params, seed=i, stop=("x",))
        )
        for i, length in enumerate((3, 130, 300, 40))
    }
    for request in requests.values():
        engine.submit(request)
    emitted: dict[str, list[int]] = {name: [] for name in requests}
    with computed():
        for _ in range(50):
            for output in (outputs := engine.step()):
                emitted[output.id] += output.tokens
    plans = recorder.read(fd)
    last = plans[-1]
    plans[-1] = RecordedPlan(last.number, False, last.spans)  # as if it had not ended: its tokens are not known
    for output in outputs:
        del emitted[output.id][-len(output.tokens) :]
    kept = {name: crash.recorded(request, emitted[name], prompts) for name, request in requests.items()}
    return crash.write(directory, "was killed by SIGSEGV", config, plans, kept), emitted


def replay(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pitstop.cli", "replay", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | environment)


def replayed(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the process of a replay that does not die prints, in this one."""
    engine_replay.main(path)
    return capsys.readouterr().out


def test_recorded_plans_give_the_same_tokens(model: Path, tmp_path: Path):
    path, emitted = record(model, True, tmp_path / "crashes")
    done = replay(path)
    assert done.returncode == 0, done.stderr
    assert "It does not die" in done.stdout
    assert "others than then" not in done.stdout
    assert "random" not in done.stdout
    lines = dict(line.split(": tokens ") for line in done.stdout.splitlines() if ": tokens " in line)
    assert len(lines) >= 3
    for name, tokens in lines.items():
        came = list(map(int, tokens.split()))
        assert came[:-1] == emitted[name][-(len(came) - 1) :], "all but the one that nobody had heard of"


@pytest.mark.parametrize("prompts", [True, False])
def test_recorded_guesses_are_guessed_again(model: Path, tmp_path: Path, prompts: bool, capsys: pytest.CaptureFixture[str]):
    path, emitted = record(model, prompts, tmp_path / "crashes", speculate=5)
    spans = [span for plan in crash.load(path).plans for span in plan.spans]
    assert sum(span.guessed for span in spans) > 20
    assert any(a.id == b.id and b.start - a.start > 1 == a.known - a.start for a, b in itertools.combinations(spans, 2)), "none came true"
    printed = replayed(path, capsys)
    assert printed.count("\nplan ") == len(crash.load(path).plans)
    if prompts:
        assert "others than then" not in printed
        lines = dict(line.split(": tokens ") for line in printed.splitlines() if ": tokens " in line)
        for name, tokens in lines.items():
            came = list(map(int, tokens.split()))
            heard = [len(came) - ahead for ahead in range(1, 7) if came[:-ahead] == emitted[name][-(len(came) - ahead) :]]
            assert heard, "all but those that nobody had heard of"


def test_another_token_than_then_is_told(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, _ = record(model, True, tmp_path / "crashes")
    text = path.read_text()
    path.write_text(text.replace('"seed": 2', '"seed": 12345'))
    assert text != path.read_text()
    assert "others than then" in replayed(path, capsys)


def test_without_prompts_random_tokens_of_the_same_lengths_run(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, _ = record(model, False, tmp_path / "crashes")
    printed = replayed(path, capsys)
    assert "random ones of the same number stand for them" in printed
    assert printed.count("\nplan ") == len(crash.load(path).plans)


def test_a_plan_that_dies_again_is_named(model: Path, tmp_path: Path):
    path, _ = record(model, True, tmp_path / "crashes")
    fault = tmp_path / "sitecustomize.py"
    fault.write_text(
        "import os\nimport pitstop.engine.runner as runner\nrun = runner.Runner.run\n"
        "def dying(self, plan):\n    if any(s.request.id == 'r2' and s.count == 1 for s in plan.spans):\n        os.abort()\n"
        "    return run(self, plan)\nrunner.Runner.run = dying\n"
    )
    done = replay(path, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode == 1
    assert "It dies again: the process was killed by SIGABRT" in done.stdout
    assert done.stdout.splitlines()[-2].startswith("plan ")


def test_what_is_no_record_is_refused(tmp_path: Path):
    (tmp_path / "x.json").write_text("{}")
    done = replay(tmp_path / "x.json")
    assert done.returncode == 2
    assert "is not a record of a crash" in done.stderr
