"""`pitstop verify quality` as a user types it, against real fronts before workers without a model."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fake_worker import fake_logits
from servers import Server, fake_server

import pitstop.cli
from pitstop.stats import Comparison
from pitstop.verify.quality import Plan

TEXT = "A score brings the logits of a prompt, row by row, and nothing else. " * 4
SHORT = partial(Plan, items=[item._replace(before="") for item in Plan().items[:4]], prompts=["hello", "#say something#"])
"""A plan that fits the small context of a worker without a model."""


@pytest.fixture(scope="module")
def reference():
    with fake_server("--admin") as server:
        yield server


@pytest.fixture(scope="module")
def noisy():
    with fake_server("--admin", "--max-logits", "20000", worker=("--perturb", "0.1")) as server:
        yield server


def verify(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pitstop", "verify", "quality", *words])
        patch.setenv("COLUMNS", "200")
        patch.setattr("pitstop.verify.quality.Plan", SHORT)
        with pytest.raises(SystemExit) as ended:
            pitstop.cli.main()
    return ended.value.code or 0


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_a_server_against_itself(reference: Server, text: Path, capsys: pytest.CaptureFixture[str]):
    assert verify(reference.url, reference.url, "--text", str(text), "--window", "64") == 0
    said = capsys.readouterr().out
    assert "PASS quality.mean_kl: 0 (at most 0.002 is allowed), over all tokens of the vocabulary, at 62 positions" in said
    assert said.rstrip().endswith("PASS")


def test_another_model_is_caught_with_the_right_figure(reference: Server, noisy: Server, text: Path, tmp_path: Path, capsys):
    assert verify(reference.url, noisy.url, "--text", str(text), "--window", "64", "--json", str(tmp_path / "out.json")) == 1
    assert "FAIL quality.mean_kl: " in capsys.readouterr().out
    figures = json.loads((tmp_path / "out.json").read_bytes())["figures"]
    tokens = reference.post("/tokenize", {"prompt": TEXT}).json()["tokens"]
    expected = Comparison()
    for window in (tokens[:64], tokens[64:128]):
        expected.add(fake_logits(window[:-1], 32), fake_logits(window[:-1], 32, 0.1), np.array(window[33:]))
    assert figures["mean_kl"] == pytest.approx(expected.agreement().kl_mean, rel=1e-12)
    assert figures["texts"]["all"]["perplexity_b"] == pytest.approx(expected.agreement().perplexity, rel=1e-12)


def test_limits_come_from_a_file(reference: Server, noisy: Server, text: Path, tmp_path: Path):
    (tmp_path / "slo.yaml").write_text("quality:\n  mean_kl: 0.5\n  perplexity_rise: 0.5\n")
    assert verify(reference.url, noisy.url, "--text", str(text), "--window", "64", "--slo", str(tmp_path / "slo.yaml")) == 0


def test_an_admin_key_is_asked_for_and_used(reference: Server, text: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    with fake_server("--admin", "--admin-key", "secret") as locked:
        words = (reference.url, locked.url, "--text", str(text), "--window", "64")
        assert verify(*words) == 1
        assert "/admin/score needs a key: set PITSTOP_VERIFY_ADMIN_KEY" in capsys.readouterr().err
        monkeypatch.setenv("PITSTOP_VERIFY_ADMIN_KEY", "secret")
        assert verify(*words) == 0


def test_without_admin_routes_it_is_a_bound(reference: Server, text: Path, tmp_path: Path, capsys):
    with fake_server() as plain:
        assert verify(reference.url, plain.url, "--text", str(text), "--window", "64", "--json", str(tmp_path / "out.json")) == 0
    said = capsys.readouterr().out
    assert "PASS quality.mean_kl_at_least: at least 0 (at most 0.002 is allowed), over the likeliest 20 tokens" in said
    figures = json.loads((tmp_path / "out.json").read_bytes())["figures"]
    assert (figures["ability_a"], figures["ability_b"]) == ("rows", "echo")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("http://127.0.0.1:9", "http://127.0.0.1:9"), "http://127.0.0.1:9 does not answer"),
        (("no-such-model", "no-such-model"), "`pitstop serve no-such-model` does not start: "),
        (("x --kv nonsense", "y"), "does not start: "),
        (["--window", "7", "a", "b"], None),
    ],
)
def test_what_cannot_be_measured(words: tuple[str, ...], message: str | None, capsys: pytest.CaptureFixture[str]):
    code = verify(*words)
    said = capsys.readouterr().err
    assert code == (1 if message else 2)
    if message:
        assert message in said
        assert len(said.strip().splitlines()) == 1
