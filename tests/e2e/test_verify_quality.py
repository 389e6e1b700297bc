"""The quality tier on real models: equal configurations do not differ, a compressed cache does by a known amount, a worse one is caught."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
from servers import Server, model_server
from toy_gguf import write_toy_gguf

import pitstop.cli
from pitstop.verify.outcome import Outcome
from pitstop.verify.quality import Plan, run
from pitstop.verify.slo import QualityLimits
from pitstop.verify.target import connect

WHOLE = Plan()
SHORT = Plan(windows=1, items=WHOLE.items[::4], prompts=WHOLE.prompts[:2], answer_tokens=32)
COMMON = ("--context", "1024", "--admin", "--kv-guard", "off", "--kv-memory", "512MiB")


@pytest.fixture(scope="module")
def reference(model_path: Path):
    with model_server(model_path, *COMMON) as server:
        yield server


def judged(a: Server, b: Server, limits: QualityLimits = QualityLimits()) -> Outcome:
    return run(connect(a.url), connect(b.url), limits, SHORT)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(300)
def test_equal_configurations_differ_in_nothing(reference: Server, model_path: Path):
    strict = QualityLimits(mean_kl=0, kl_p999=0, same_top_share=1, perplexity_rise=0, flipped_share=0, length_drift=0)
    with model_server(model_path, *COMMON) as other:
        outcome = judged(reference, other, strict)
    assert outcome.passed, outcome.failures
    assert outcome.figures["answers"]["equal"] == 2
    assert outcome.figures["choices"]["accuracy_a"] > 0.4


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_compressed_cache_differs_by_the_known_amount(reference: Server, model_path: Path):
    with model_server(model_path, *COMMON, "--kv", "int4") as other:
        outcome = judged(reference, other, QualityLimits(mean_kl=0.01, perplexity_rise=0.03))
        assert outcome.passed, outcome.failures
        assert 0.001 < outcome.figures["mean_kl"] < 0.008
        assert 0.9 < outcome.figures["same_top_share"] < 1
        strict = judged(reference, other, QualityLimits(mean_kl=outcome.figures["mean_kl"] * 0.9, perplexity_rise=None))
        assert [check.name for check in strict.failures] == ["quality.mean_kl"]


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_worse_model_is_caught(reference: Server, model_path: Path):
    with model_server(model_path, *COMMON, "--activations", "int8") as other:
        outcome = judged(reference, other)
    assert "quality.mean_kl" in [check.name for check in outcome.failures]


def test_configurations_are_served_for_it_and_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    toy = write_toy_gguf(tmp_path / "toy.gguf", context=4096, tied=False, head_dim=32)
    (tmp_path / "text.txt").write_text("What is stored is sealed once. " * 40)
    monkeypatch.setenv("PITSTOP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PITSTOP_API_KEYS", "not for these")
    monkeypatch.setenv("PITSTOP_ADMIN_KEY", "nor this")
    options = ["--text", str(tmp_path / "text.txt"), "--windows", "1", "--json", str(tmp_path / "out.json")]
    monkeypatch.setattr("pitstop.verify.quality.Plan", partial(Plan, items=SHORT.items, prompts=SHORT.prompts, answer_tokens=32))
    common = f"{toy} --kv-memory 64MiB --kv-guard off"
    monkeypatch.setattr(sys, "argv", ["pitstop", "verify", "quality", common, f"{common} --kv int4", *options])
    before = psutil.Process(os.getpid()).children(recursive=True)
    with pytest.raises(SystemExit):
        pitstop.cli.main()
    outcome = json.loads((tmp_path / "out.json").read_bytes())
    assert outcome["target"]["configuration"] == f"{common} --kv int4"
    assert outcome["target"]["reference_configuration"] == common
    assert 0 < outcome["figures"]["mean_kl"] < 1
    assert set(psutil.Process(os.getpid()).children(recursive=True)) <= set(before)
