"""The guard: what it measures, when it measures again, and what it does when a codec changes a model too much."""

from __future__ import annotations

import io
import logging
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from servers import model_server
from toy_gguf import write_toy_gguf

import pitstop.cli
from pitstop import LLM, SamplingParams
from pitstop.codecs.segmented import Segmented
from pitstop.engine import guard
from pitstop.errors import ConfigError
from pitstop.models.weights.gguf import open_gguf
from pitstop.text.tokenizer import Tokenizer

MEASURE = guard.measure


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy_gguf(tmp_path / "toy.gguf", tied=False, head_dim=32)


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[guard.Loss]:
    """What was measured, and not remembered, in this test. The memory is its own."""
    monkeypatch.setenv("PITSTOP_HOME", str(tmp_path / "home"))
    done: list[guard.Loss] = []

    def spy(*arguments) -> guard.Loss:
        done.append(MEASURE(*arguments))
        return done[-1]

    monkeypatch.setattr(guard, "measure", spy)
    return done


def lines(model: Path, codec: str, **options) -> list[str]:
    return [note for note in LLM(model, codec=codec, memory=512 << 20, **options).engine.notes() if f"--kv {codec}" in note]


@pytest.mark.parametrize("codec", ["raw16", "raw32"])
def test_a_codec_that_changes_nothing_is_not_measured(toy: Path, measured: list, codec: str) -> None:
    assert lines(toy, codec) == []
    assert measured == []
    assert not (toy.parent / "home").exists()


def test_the_loss_is_stated_in_one_line_and_measured_once(toy: Path, measured: list[guard.Loss]) -> None:
    [line] = lines(toy, "int8")
    assert line == f"--kv int8: {measured[0]}"
    assert measured[0].tokens == 639 - 128
    assert 0 < measured[0].mean_kl < guard.LIMIT
    assert lines(toy, "int8") == [line]
    assert len(measured) == 1


def test_what_the_loss_depends_on_has_it_measured_again(toy: Path, measured: list, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines(toy, "int8")
    other = write_toy_gguf(tmp_path / "other.gguf", seed=1, tied=False, head_dim=32)
    for count, (model, codec, options) in enumerate(
        [(other, "int8", {}), (toy, "int4", {}), (toy, "int8", {"activations": "int8"}), (toy, "int8", {"context": 500})], 2
    ):
        lines(model, codec, **options)
        assert len(measured) == count, (codec, options)
    monkeypatch.setattr(guard, "CODE", guard.CODE + "\n")
    lines(toy, "int8")
    monkeypatch.setattr(guard, "__version__", "another")
    lines(toy, "int8")
    write_toy_gguf(toy, seed=2, tied=False, head_dim=32)
    lines(toy, "int8")
    assert len(measured) == 8


def test_the_measure_is_that_of_two_ordinary_runs(toy: Path, measured: list[guard.Loss]) -> None:
    """Scores of the same text by the batch API: both in segments and token by token, the cache is sealed the same way."""
    lines(toy, "int4")
    runs = {}
    for codec in ("raw16", "int4"):
        llm = LLM(toy, codec=codec, guard="off", prefill_chunk=100)
        tokens = guard._text(llm.tokenizer, guard.LONGEST)
        [output] = llm.generate([[*tokens, 3]], SamplingParams(max_tokens=1, prompt_logprobs=1))
        runs[codec] = [score.top[0][0] for score in output.prompt_logprobs[128:]]
    assert len(runs["int4"]) == measured[0].tokens
    same = np.mean([a == b for a, b in zip(runs["raw16"], runs["int4"], strict=True)])
    assert same < 1
    assert measured[0].same_top == pytest.approx(same)


def test_a_codec_that_ruins_the_model_warns_or_stops(
    toy: Path, measured: list, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exact = Segmented.encode

    def planted(self, tails, pages, items, table):
        exact(self, tails, pages, items, table)
        if self.name == "int8":
            pages[items[items[:, 4] >= 0, 4].long()] = 0

    monkeypatch.setattr(Segmented, "encode", planted)
    with caplog.at_level(logging.WARNING):
        [line] = lines(toy, "int8", backend="ref")
    assert line.startswith("WARNING: --kv int8 changes this model much: mean KL divergence ")
    assert caplog.messages == [line]
    assert measured[0].mean_kl > 5 * guard.LIMIT
    with pytest.raises(
        ConfigError, match=r"changes this model much: .* choose a codec of more bits, like int8 or raw16, or --kv-guard warn"
    ):
        lines(toy, "int8", guard="strict")
    assert len(measured) == 1, "a bad loss is remembered, too"
    assert lines(toy, "int8", guard="off") == []


def test_a_cache_of_nan_is_a_loss_and_not_a_crash(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Segmented.attend
    monkeypatch.setattr(Segmented, "attend", lambda self, *rest: exact(self, *rest) * (1 if self.name == "raw16" else np.nan))
    [line] = lines(toy, "int8", backend="ref")
    assert line.startswith("WARNING: --kv int8 changes this model much: mean KL divergence inf")


def test_strict_starts_when_all_is_well(toy: Path) -> None:
    assert len(lines(toy, "int8", guard="strict")) == 1
    with pytest.raises(ConfigError, match="--kv-guard maybe: choose warn, strict or off"):
        lines(toy, "int8", guard="maybe")


@pytest.mark.parametrize("damage", ["", "{}", '{"mean_kl": null, "same_top": 1, "tokens": 5}', "\0"])
def test_a_damaged_memory_is_measured_again(toy: Path, measured: list, damage: str) -> None:
    line = lines(toy, "int8")
    [memory] = (toy.parent / "home/guard").iterdir()
    memory.write_text(damage)
    assert lines(toy, "int8") == line
    assert len(measured) == 2
    assert lines(toy, "int8") == line
    assert len(measured) == 2


def test_a_memory_that_cannot_be_written_stops_nothing(toy: Path, measured: list, monkeypatch: pytest.MonkeyPatch) -> None:
    (toy.parent / "home").write_text("a file where a folder should be")
    assert lines(toy, "int8") == lines(toy, "int8")
    assert len(measured) == 2


def test_a_short_context_seals_too_little_that_is_read(toy: Path, measured: list) -> None:
    [line] = lines(toy, "int8", context=255)
    assert "not measured" in line
    assert measured == []
    assert len(lines(toy, "int8", context=256)) == len(measured) == 1


def test_each_part_of_the_text_fills_its_third(toy: Path) -> None:
    llm = LLM(toy, memory=64 << 20)
    tokens = guard._text(llm.tokenizer, guard.LONGEST)
    assert len(tokens) == guard.LONGEST // 3 * 3
    texts = [llm.tokenizer.decode(tokens[i : i + 213]) for i in range(0, 639, 213)]
    assert [text[:10] for text in texts] == [part[:10] for part in (guard.ENGLISH, guard.CODE, guard.CHINESE)]


@pytest.mark.model
@pytest.mark.parametrize(("codec", "warns"), [pytest.param("int8", False, marks=pytest.mark.slow), ("int4", False), ("delta8-open", True)])
def test_the_default_model(model_path: Path, codec: str, warns: bool) -> None:
    """The text is long enough for its tokens, and the figures are those of the quality bench in kind."""
    tokenizer = Tokenizer(open_gguf(model_path).vocabulary())
    assert len(guard._text(tokenizer, guard.LONGEST)) == 639
    [line] = lines(model_path, codec)
    assert line.startswith("WARNING") == warns


def pitstop_command(*words: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pitstop.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


NARROW = "pitstop: --kv int4: its codes lie in blocks of 32 channels, which do not divide a head dimension of 16\n"


def test_a_codec_that_cannot_serve_the_model_stops_a_server_with_one_line(tmp_path: Path) -> None:
    model = write_toy_gguf(tmp_path / "narrow.gguf")
    done = pitstop_command("serve", str(model), "--port", str(free_port()), "--log-level", "error", "--kv", "int4")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", NARROW)


@pytest.mark.parametrize("words", [["generate", "Hello"], ["chat"]])
def test_a_codec_that_cannot_serve_the_model_stops_other_verbs_with_one_line(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_toy_gguf(tmp_path / "narrow.gguf")
    monkeypatch.setattr(sys, "argv", ["pitstop", *words, "--model", str(model), "--kv", "int4"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    with pytest.raises(SystemExit) as ended:
        pitstop.cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr() == ("", NARROW)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_the_server_says_what_fits_and_what_it_costs(toy: Path) -> None:
    with model_server(toy, "--kv", "int8", "--kv-memory", "64MiB") as server:
        assert server.complete("Hello", max_tokens=200, ignore_eos=True).json()["usage"]["completion_tokens"] == 200
        tokens = server.metric('pitstop_kv_capacity_tokens{sequence_length="1024"}')
        ratio = server.metric('pitstop_kv_capacity_ratio{sequence_length="1024"}')
    assert f"KV cache: int8, 64 MiB, {tokens:,.0f} tokens in streams of 1,024, {ratio:.2f} times those of 16 bits\n" in server.printed
    assert any(line.startswith("--kv int8: mean KL divergence ") for line in server.printed)
    assert ratio == pytest.approx(1.855, abs=0.01)
