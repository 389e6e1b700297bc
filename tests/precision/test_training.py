"""Training with the rounding in the loop, on a tiny seeded model."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from tiny_models import write_tiny_model

from pitstop.errors import ConfigError
from pitstop.models.weights.source import open_model
from pitstop.precision import training
from pitstop.precision.decoder import DenseDecoder, load_decoder
from pitstop.precision.fake_quant import fake_quantised, prepare
from pitstop.precision.scheme import schemes
from pitstop.precision.training import Interrupted, Training, train

PLAN = Training(steps=12, lr=2e-3, batch=2, length=24, seed=5)
WINDOWS = [[(7 * i * i + 3 * j + i * j) % 256 for j in range(24)] for i in range(9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", "llama", attention_bias=False)


def run(
    folder: Path, state: Path, plan: Training = PLAN, windows: list[list[int]] = WINDOWS, bits: int = 4
) -> tuple[DenseDecoder, list[float]]:
    """A run from the folder's weights, or on from what `state` holds."""
    source = open_model(folder)
    decoder = load_decoder(source)
    prepare(decoder, schemes(source.config, bits), torch.float16)
    teacher = load_decoder(source).requires_grad_(False) if plan.objective == "distil" else None
    return decoder, train(decoder, teacher, windows, plan, state, "tiny")


def stopped(patch: pytest.MonkeyPatch, step: int, number: int = signal.SIGINT) -> None:
    """Ask for a stop while a step runs."""
    plain, done = training._step, []

    def step_and_ask(*arguments: object) -> float:
        done.append(None)
        if len(done) == step:
            signal.raise_signal(number)
        return plain(*arguments)

    patch.setattr(training, "_step", step_and_ask)


@pytest.mark.parametrize("objective", ["distil", "tokens"])
def test_training_lowers_the_loss(folder: Path, tmp_path: Path, objective: str) -> None:
    _, losses = run(folder, tmp_path, Training(40, 3e-3, 2, 24, 5, objective))
    assert len(losses) == 40
    assert sum(losses[-8:]) < 0.75 * sum(losses[:8])


def test_a_run_in_pieces_is_the_run_without_a_break(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "pieces").mkdir()
    whole, losses = run(folder, tmp_path / "whole")
    for step, number in ((3, signal.SIGINT), (5, signal.SIGTERM)):
        with pytest.MonkeyPatch.context() as patch:
            stopped(patch, step, number)
            with pytest.raises(Interrupted, match=r"of 12; the same command goes on from here"):
                run(folder, tmp_path / "pieces")
    pieces, again = run(folder, tmp_path / "pieces")
    assert again == losses
    for (name, weight), other in zip(whole.named_parameters(), pieces.parameters(), strict=True):
        assert torch.equal(weight, other), name


def test_ctrl_c_ends_the_step_and_keeps_the_state(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stopped(monkeypatch, 2)
    with pytest.raises(Interrupted, match="stopped at step 2 of 12"):
        run(folder, tmp_path)
    assert len(torch.load(tmp_path / training.STATE, weights_only=True)["losses"]) == 2
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert [file.name for file in tmp_path.iterdir()] == [training.STATE]


def test_a_state_of_other_options_is_refused(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path, Training(1, 1e-3, 2, 24))
    for plan, windows in ((Training(2, 1e-3, 2, 24), WINDOWS), (Training(1, 1e-3, 2, 24), WINDOWS[::-1])):
        with pytest.raises(ConfigError, match=r"--qat: .*training\.pt is the state of a training with other options"):
            run(folder, tmp_path, plan, windows)


def test_a_loss_that_is_none_ends_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_step", lambda *_: float("nan"))
    with pytest.raises(ConfigError, match=r"--lr 0\.002: the loss is nan at step 1; choose a lower rate"):
        run(folder, tmp_path)
    assert not (tmp_path / training.STATE).exists()


def test_sequences_come_once_each_before_they_come_again() -> None:
    seen = [index for step in range(9) for index in training.batch_of(step, 9, PLAN)]
    assert sorted(seen[:9]) == sorted(seen[9:]) == list(range(9))
    assert seen[:9] != seen[9:]
    assert seen[:9] != list(range(9))


def test_the_rate_rises_and_falls() -> None:
    rates = [training.rate(step, 200) for step in range(200)]
    assert rates[9] == max(rates) == 1.0
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.001


@pytest.mark.parametrize(("bits", "symmetric"), [(4, True), (4, False), (8, True)])
def test_the_fake_quantiser_computes_what_torchaos_does(folder: Path, bits: int, symmetric: bool) -> None:
    """Values and gradients, on the same grid."""
    from torchao.quantization.qat.fake_quantizer import IntxFakeQuantizer

    source = open_model(folder)
    decoder = load_decoder(source)
    prepare(decoder, schemes(source.config, bits, symmetric=symmetric), torch.float16)
    found = dict(fake_quantised(decoder))
    assert found.keys() == {name.removesuffix(".weight") for name in schemes(source.config, bits)}
    for module in found.values():
        ours = module.weight_fake_quantizer
        theirs = IntxFakeQuantizer(ours.config)
        theirs.scale, theirs.zero_point = ours.grid.scales, ours.grid.zeros.int()
        gradients = []
        for quantiser in (ours, theirs):
            weight = module.weight.detach().mul(1.3).requires_grad_()
            values = quantiser(weight)
            (values * torch.linspace(-1, 1, values.numel()).view_as(values)).sum().backward()
            gradients.append((values.detach(), weight.grad))
        assert torch.allclose(gradients[0][0], gradients[1][0], rtol=0, atol=1e-6)
        assert torch.allclose(gradients[0][1], gradients[1][1], rtol=0, atol=1e-6)
        assert (gradients[0][1] == 0).any(), "weights beyond the grid have no gradient"


def test_the_network_that_is_trained_is_rounded_as_it_will_be_written(folder: Path) -> None:
    source = open_model(folder)
    decoder = load_decoder(source)
    prepare(decoder, schemes(source.config, 4), torch.float16)
    for _, module in fake_quantised(decoder):
        grid = module.weight_fake_quantizer.grid
        codes = grid.codes(module.weight.detach())
        scales, zeros = grid.spread(module.in_features)
        assert torch.allclose(module.weight_fake_quantizer(module.weight), (codes - zeros) * scales, rtol=0, atol=1e-6)


def test_without_torchao_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchao.quantization.qat", None)
    source = open_model(folder)
    with pytest.raises(ConfigError, match=r"--qat needs torchao .*pip install -e '.\[precision\]'"):
        prepare(load_decoder(source), schemes(source.config, 4), torch.float16)
