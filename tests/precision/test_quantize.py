"""`pitstop quantize` from end to end on tiny models."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import write_tiny_model

import pitstop.cli
from pitstop import LLM, SamplingParams
from pitstop.errors import ConfigError
from pitstop.models.weights.source import open_model
from pitstop.pool.texts import read_model
from pitstop.precision import quantize as quantising
from pitstop.precision import training
from pitstop.precision.quantize import Wish, quantize
from pitstop.precision.training import Training
from pitstop.stats import Agreement

SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "tie_word_embeddings": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", "llama", dtype=torch.bfloat16, **SIZES)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(f"{number} sheep jumped over {number * number} fences.\n" for number in range(60)))
    return str(file)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `pitstop quantize …`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pitstop", "quantize", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            pitstop.cli.main()
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


def test_a_model_in_8_bits_is_near_and_answers(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, model, tmp_path / "out", "--bits", 8)
    assert status == 0
    assert out.splitlines()[0].split()[:5] == ["perplexity", "KL", "mean", "KL", "99.9"]
    report = json.loads((tmp_path / "out" / "quantize.json").read_text())
    assert 0 < report["rounded"]["kl_mean"] < 0.01
    assert report["rounded"]["reference_perplexity"] > 1
    assert report["trained"] is None
    assert (report["groups"], report["bits_a_weight"]) == ([32], 8.5)
    assert report["command"] == f"pitstop quantize {model} {tmp_path / 'out'} --bits 8"
    assert report["measured_on"]["text"] == "built-in, short"
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    opened, llm = read_model(str(tmp_path / "out")), LLM(tmp_path / "out")  # as a server's front and worker do
    answer = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=8))
    assert opened.texts.template.render([{"role": "user", "content": "Hello"}]) == answer.prompt
    assert answer.tokens


def test_training_wins_loss_back_and_says_how_much(model: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--qat", text, "--steps", 12, "--lr", 1e-4, "--batch", 4, "--length", 48, "--json"]
    status, out, err = run(capsys, model, tmp_path / "out", *options)
    assert status == 0, err
    report = json.loads(out)
    assert report == json.loads((tmp_path / "out" / "quantize.json").read_text())
    assert 0 < report["trained"]["kl_mean"] < 0.95 * report["rounded"]["kl_mean"]
    assert report["won_back"] == 1 - report["trained"]["kl_mean"] / report["rounded"]["kl_mean"]
    assert (report["options"]["training"]["seed"], report["groups"]) == (0, [128])
    assert [file.name for file in tmp_path.iterdir()] == ["out"], "the training's state goes with the parts"


@pytest.mark.slow
def test_calibration_is_nearer_than_rounding(model: Path, tmp_path: Path, text: str) -> None:
    plain = quantize(model, tmp_path / "plain", Wish(heldout=text, training=Training(length=48)))
    fitted = quantize(model, tmp_path / "fitted", Wish(calibrate=text, heldout=text, training=Training(length=48)))
    assert fitted.final.kl_mean < 0.8 * plain.final.kl_mean


@pytest.mark.usefixtures("unmeasured")
def test_ctrl_c_and_the_same_command_again(
    model: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_training import stopped

    options = ["--qat", text, "--steps", 6, "--batch", 1, "--length", 48]
    with monkeypatch.context() as patch:
        stopped(patch, 3)
        status, _, err = run(capsys, model, tmp_path / "out", *options)
    assert status == 130
    assert "pitstop: stopped at step 3 of 6; the same command goes on from here" in err
    assert not (tmp_path / "out").exists()
    assert (tmp_path / ".out.part" / training.STATE).exists()
    status, _, err = run(capsys, model, tmp_path / "out", *options, "--lr", 0.5)
    assert (status, "the state of a training with other options" in err) == (1, True)
    steps: list[int] = []
    plain = training._step
    monkeypatch.setattr(training, "_step", lambda *arguments: (steps.append(1), plain(*arguments))[1])
    assert run(capsys, model, tmp_path / "out", *options)[0] == 0
    assert len(steps) == 3


@pytest.mark.usefixtures("unmeasured")
def test_what_breaks_leaves_no_folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(quantising, "publish", lambda *_: (_ for _ in ()).throw(RuntimeError("planted")))
        with pytest.raises(RuntimeError, match="planted"):
            quantize(model, tmp_path / "out", Wish(bits=8))
    assert not (tmp_path / "out").exists()
    quantize(model, tmp_path / "out", Wish(bits=8))
    assert open_model(tmp_path / "out").config == open_model(model).config


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--bits", "3"], "pitstop: --bits 3: choose 8 or 4"),
        (["--group", "96"], "pitstop: --group 96 does not divide the 128 inputs of model.layers.0.self_attn.q_proj.weight"),
        (["--bits", "8", "--asymmetric"], "pitstop: --asymmetric: weights of 8 bits are symmetric"),
        (["--qat", "/none"], "pitstop: --qat /none: cannot be read as text"),
        (["--calibrate", "built-in", "--qat", "built-in"], "pitstop: --calibrate beside --qat"),
        (["--calibrate", "built-in", "--length", "5000"], "pitstop: --length 5000: this model's context is 1024 tokens"),
    ],
)
def test_bad_options_are_named(model: Path, tmp_path: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, model, tmp_path / "out", *options)
    assert status == 1
    assert err.startswith(words)
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are near: nobody measures, which takes longest."""
    near = Agreement(1, 0.001, 0.01, 1.0, 2.0, 2.0)
    monkeypatch.setattr(quantising, "measure", lambda _, models, *__: dict.fromkeys(models, near))


@pytest.mark.usefixtures("unmeasured")
def test_a_folder_that_is_there_and_a_model_that_has_few_bits(model: Path, tmp_path: Path) -> None:
    quantize(model, tmp_path / "eight", Wish(bits=8))
    with pytest.raises(ConfigError, match=r"OUT .*eight: is there already"):
        quantize(model, tmp_path / "eight", Wish(bits=8))
    with pytest.raises(ConfigError, match=r"--bits 8: .*eight holds its weights in INT8 already"):
        quantize(tmp_path / "eight", tmp_path / "again", Wish(bits=8))
    assert quantize(tmp_path / "eight", tmp_path / "four", Wish(bits=4)).final.kl_mean > 0
