"""The front door: what it imports, how options become configs, and how errors end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import toy_gguf
import typer

import pitstop.cli
from pitstop.cli.options import parse_size, show_size
from pitstop.cli.serve import announcement
from pitstop.config import EngineConfig, KVConfig, PoolConfig, ServerConfig
from pitstop.engine.protocol import Ready
from pitstop.errors import ConfigError
from pitstop.kv.capacity import Capacity

VERBS = [
    ["serve"],
    ["replay"],
    ["generate"],
    ["chat"],
    ["models"],
    ["models", "list"],
    ["models", "pull"],
    ["doctor"],
    ["kv-report"],
    ["quantize"],
]


def run(*arguments: str) -> int:
    """The exit status of `pitstop ARGUMENTS` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pitstop", *arguments])
        with pytest.raises(SystemExit) as ended:
            pitstop.cli.main()
    return ended.value.code or 0


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What a stand-in for `pitstop.server.run` was called with, the worker process left out: none is started."""
    calls: list[tuple] = []
    module = types.ModuleType("pitstop.server")
    module.run = lambda *arguments: calls.append(arguments[:-1])
    monkeypatch.setattr("pitstop.pool.spawn", lambda: None)
    monkeypatch.setitem(sys.modules, "pitstop.server", module)
    monkeypatch.delenv("PITSTOP_API_KEYS", raising=False)
    return calls


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return toy_gguf.write_toy_gguf(tmp_path / "toy.gguf")


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    heavy = "torch fastapi starlette uvicorn tokenizers gguf transformers jinja2"
    code = f"import sys, pitstop.cli; print([name for name in {heavy.split()} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("verb", [[], *VERBS])
def test_help(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*verb, "--help") == 0
    short, long = capsys.readouterr().out, run(*verb, "-h") or capsys.readouterr().out
    assert short == long
    assert "Usage: pitstop" in short


def test_every_option_has_a_help_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = typer.main.get_command(pitstop.cli.app)
    verbs = [command.commands[name] for name in ("serve", "generate", "chat", "doctor", "kv-report", "quantize", "replay")] + list(
        command.commands["models"].commands.values()
    )
    for verb in verbs:
        assert verb.help, verb.name
        for parameter in verb.params:
            assert parameter.help, f"{verb.name} {parameter.name}"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"pitstop {pitstop.__version__}\n"


def test_serve_with_defaults_is_the_configs_with_defaults(served: list[tuple], toy: Path) -> None:
    assert run("serve", str(toy)) == 0
    [(server, pool, engine, _)] = served
    assert server == ServerConfig(model_name="toy")
    assert pool == PoolConfig()
    assert engine == EngineConfig(model=str(toy))


def test_serve_options_become_configs(served: list[tuple], toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PITSTOP_API_KEYS", "one, two")
    options = """--host 0.0.0.0 --port 9000 --model-name mine --device cpu --backend ref --threads 3 --context 512 --kv raw16
        --activations int8 --kv-memory 2GiB --kv-guard strict --prefill-chunk 64 --max-running 4 --max-waiting 5 --no-prefix-cache
        --no-share-weights --speculate 6 --request-timeout 7.5 --max-body 3MB --log-level error"""
    assert run("serve", str(toy), *options.split()) == 0
    [(server, pool, engine, _)] = served
    assert server == ServerConfig(
        model_name="mine", host="0.0.0.0", port=9000, api_keys=("one", "two"), max_body=3_000_000, request_timeout=7.5
    )
    assert pool == PoolConfig(max_waiting=5)
    kv = KVConfig(codec="raw16", memory=2 << 30, context=512, prefix_cache=False, guard="strict")
    assert engine == EngineConfig(
        model=str(toy), device="cpu", backend="ref", activations="int8", threads=3, prefill_chunk=64, max_running=4, speculate=6, kv=kv,
        share_weights=False,
    )  # fmt: skip


def test_the_admin_routes_are_asked_for_and_their_key_is_not_an_option(
    served: list[tuple], toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PITSTOP_ADMIN_KEY", raising=False)
    assert run("serve", str(toy), "--admin", "--host", "0.0.0.0") == 1
    assert capsys.readouterr().err == "pitstop: --admin on --host 0.0.0.0 needs a key: set PITSTOP_ADMIN_KEY, or listen on 127.0.0.1\n"
    assert served == []
    monkeypatch.setenv("PITSTOP_ADMIN_KEY", "secret")
    assert run("serve", str(toy), "--admin", "--host", "0.0.0.0") == 0
    assert served[0][0] == ServerConfig(model_name="toy", host="0.0.0.0", admin=True, admin_key="secret")


@pytest.mark.parametrize(
    "wrong",
    [
        "--port 0",
        "--port 65536",
        "--port x",
        "--device tpu",
        "--backend fast",
        "--threads -1",
        "--context -1",
        "--kv-memory 2Gib/s",
        "--kv-memory -1",
        "--kv-guard maybe",
        "--max-body lots",
        "--max-running 0",
        "--speculate -1",
        "--speculate 33",
        "--prefill-chunk 0",
        "--max-waiting -1",
        "--request-timeout 0",
        "--request-timeout nan",
        "--request-timeout inf",
        "--log-level loud",
        "--api-key secret",
        "one.gguf two.gguf",
    ],
)
def test_wrong_usage(wrong: str, served: list[tuple], toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("serve", str(toy), *wrong.split()) == 2
    assert served == []
    assert "Usage: pitstop serve" in capsys.readouterr().err


def test_an_error_of_ours_is_one_line(served: list[tuple], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("serve", "no-such-model") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"pitstop: model 'no-such-model': no such file.*smollm2-135m-instruct\n", err)


def test_an_error_of_the_server_is_one_line(toy: Path, served: list[tuple], capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*configs: object) -> None:
        raise ConfigError("--device cuda: no CUDA device is usable")

    sys.modules["pitstop.server"].run = fail
    assert run("serve", str(toy)) == 1
    assert capsys.readouterr().err == "pitstop: --device cuda: no CUDA device is usable\n"


def test_kv_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    toy = toy_gguf.write_toy_gguf(tmp_path / "toy.gguf", head_dim=32)
    assert run("kv-report", "--model", str(toy), "--codec", "int8", "--codec", "int4", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["shape"] == {"layers": 2, "kv_heads": 2, "head_dim": 32}
    assert [row["codec"] for row in report["rows"]] == ["int8", "int4"]
    assert [row["lead_pages"] for row in report["rows"]] == [0, 1]
    assert run("kv-report", "--model", str(toy)) == 0
    table = capsys.readouterr().out
    for row in report["rows"]:
        line = next(line for line in table.splitlines() if line.startswith(f"│ {row['codec']} "))
        assert re.findall(r"\d+\.\d\d(?= )", line.partition("own")[2]) == [f"{bits:.2f}" for bits in row["own"].values()]
    assert "raw16" in table
    assert "min(128, n // 256)" in table


def test_kv_report_says_what_a_codec_cannot_do(toy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert run("kv-report", "--model", str(toy)) == 0
    assert "int4 cannot serve this model: its codes lie in blocks of 32 channels" in capsys.readouterr().out
    assert run("kv-report", "--model", str(toy), "--codec", "int9") == 1
    assert capsys.readouterr().err.startswith("pitstop: --kv int9: choose one of raw16, ")


def test_interrupt(toy: Path, served: list[tuple], capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*configs: object) -> None:
        raise KeyboardInterrupt

    sys.modules["pitstop.server"].run = interrupt
    assert run("serve", str(toy)) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_announcement() -> None:
    facts = Ready(1, context=8192, capacity=Capacity(100_000, 8192, 1.0), vocab_size=9, notes=["backend cpu"])
    text = announcement(ServerConfig(model_name="m", host="0.0.0.0", port=9000), facts)
    assert text.splitlines()[:4] == [
        "backend cpu",
        "Serving m on http://127.0.0.1:9000/v1",
        "Context 8,192 tokens",
        "Whoever reaches this port may use it: no PITSTOP_API_KEYS are set",
    ]
    for safe in (ServerConfig(model_name="m"), ServerConfig(model_name="m", host="0.0.0.0", api_keys=("k",))):
        assert "Whoever" not in announcement(safe, facts)
    assert "curl http://127.0.0.1:9000/v1/chat/completions " in text
    assert "Authorization" not in text
    assert "'Authorization: Bearer YOUR_KEY'" in announcement(ServerConfig(model_name="m", host="::1", api_keys=("k",)), facts)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1048576", 1 << 20), ("2GiB", 2 << 30), ("2 gib", 2 << 30), ("1.5Mi", 3 << 19), ("500MB", 500_000_000), ("1k", 1000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "2TiB", "2 GiB of memory", "nan", "١"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="like 2GiB"):
        parse_size(text)


def test_shown_sizes() -> None:
    assert [show_size(size) for size in (0, 1023, 1536, 98_362_432, 5 << 40)] == ["0 B", "1023 B", "1.5 KiB", "93.81 MiB", "5 TiB"]
