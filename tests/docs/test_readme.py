"""Both READMEs hold the same commands, and every one of them works: cheap ones are run as they stand, `make` targets with -n."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import toy_gguf
import typer
from servers import fake_server

import pitstop.cli
from pitstop.config import ServerConfig
from pitstop.models.weights import fetch
from pitstop.server import Service, create_app
from pitstop.types import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    return [line for block in blocks(page, "bash") for line in block.splitlines()]


def matching(pattern: str) -> list[str]:
    return [command for command in commands(ENGLISH) if re.match(pattern, command)]


PITSTOP = r"\.venv/bin/pitstop "
LOCAL = PITSTOP + r"(.*--help|models list|doctor)$"
KINDS = (
    r"sudo apt install ",
    r"make ",
    LOCAL,
    PITSTOP + "generate ",
    PITSTOP + "chat --url ",
    r"curl ",
    PITSTOP + "kv-report",
    PITSTOP + "verify ",
    PITSTOP + "upgrade ",
)


def own_process(command: str) -> list[str]:
    """The command's words, with the interpreter that runs the tests in place of the one in .venv."""
    return [sys.executable, "-m", "pitstop.cli", *shlex.split(command)[1:]]


def run(words: list[str], **options: object) -> str:
    """Standard output of a command that succeeds."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False, **options)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def test_both_pages_hold_the_same_commands() -> None:
    assert commands(ENGLISH) == commands(CHINESE)
    assert blocks(ENGLISH, "python") == blocks(CHINESE, "python")
    for page in (ENGLISH, CHINESE):
        fences = re.findall(r"^```(\w*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(fences) == {"bash", "python", ""}, f"{page.name} has blocks that nothing tests"


def test_both_pages_hold_the_same_options_and_routes() -> None:
    for pattern in (r"`(--[a-z-]+)`", r"(?:GET|POST) (/[\w/]+)", r"`([a-z]+_[a-z_]+)`", r"PITSTOP_\w+"):
        english, chinese = (sorted(set(re.findall(pattern, page.read_text(encoding="utf-8")))) for page in (ENGLISH, CHINESE))
        assert english == chinese
        assert english


def test_routes_and_fields_are_the_servers() -> None:
    schema = create_app(Service(ServerConfig(model_name="toy"))).openapi()
    section = ENGLISH.read_text(encoding="utf-8").partition("## The API")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(?:GET|POST) (/[\w/]+)`", section))
    assert documented == {path for path in schema["paths"] if "{" not in path}
    shapes = schema["components"]["schemas"]
    fields = {name for shape in ("ChatRequest", "CompletionRequest") for name in shapes[shape]["properties"]}
    named = set(re.findall(r"`([a-z_]+)`", section))
    assert named <= fields | {name for shape in shapes.values() for name in shape.get("properties", ())}
    assert named >= set(SamplingParams.__struct_fields__) & fields


def test_every_command_is_tested() -> None:
    for command in commands(ENGLISH):
        assert sum(re.match(kind, command) is not None for kind in KINDS) == 1, f"no test runs: {command}"


def test_options_are_the_command_lines() -> None:
    serve = typer.main.get_command(pitstop.cli.app).commands["serve"]
    defaults = {name: option.default for option in serve.params for name in (*option.opts, *option.secondary_opts)}
    for names, values in re.findall(r"^\| (`--.*?) \| (.*?) \|", ENGLISH.read_text(encoding="utf-8"), re.MULTILINE):
        for name, value in zip(re.findall(r"`(.*?)`", names), values.split(", "), strict=True):
            assert name in defaults
            assert name.startswith("--no-") or value == str(defaults[name]).removesuffix(".0"), name


def test_linked_files_and_headings_exist() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", page.read_text(encoding="utf-8")):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            headings = re.findall(r"^#+ (.*)", file.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
            assert not anchor or anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings], anchor


def test_options_that_pages_name_exist() -> None:
    """Of `pitstop` itself, of its parts, or of a script under bench/."""
    known = '"--help"' + "".join(script.read_text(encoding="utf-8") for script in (*ROOT.glob("bench/*.py"), *ROOT.glob("tests/*.py")))
    commands = [typer.main.get_command(pitstop.cli.app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        known += " ".join(f'"{name}"' for option in command.params for name in (*option.opts, *option.secondary_opts))
    for page in (ENGLISH, CHINESE, ROOT / "docs/operate.md", ROOT / "docs/reliability.md", ROOT / "docs/kv.md"):
        for name in re.findall(r"(?<![\w-])--[a-z][\w-]+", page.read_text(encoding="utf-8")):
            assert f'"{name}' in known, f"{page.name} names {name}"


@pytest.mark.model
def test_metrics_that_pages_name_exist(address: str) -> None:
    exported = httpx.get(f"http://{address}/metrics").text
    for page in (ROOT / "docs/operate.md", ROOT / "docs/reliability.md"):
        for name in set(re.findall(r"`(pitstop_\w+)", page.read_text(encoding="utf-8"))):
            assert re.search(rf"^{name}(_bucket|_total)?[ {{]", exported, re.MULTILINE), f"{page.name} names {name}"


def test_packages_are_those_that_the_checks_install() -> None:
    [command] = matching(KINDS[0])
    script = (ROOT / ".ci/run").read_text()
    named = set(re.findall(r"missing\+=\(([\w+-]+)\)", script))
    assert set(command.removeprefix("sudo apt install ").split()) == named


@pytest.mark.parametrize("command", matching("make "))
def test_make(command: str) -> None:
    words = shlex.split(command)
    printed = run([words[0], "-n", *words[1:]])
    target = words[1]
    assert {"test": "pytest", "verify": "bench/verify.py"}.get(target, f"pitstop {target}") in printed


@pytest.mark.parametrize("command", matching(r"make serve .*ARGS="))
def test_options_of_make_serve(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple] = []
    monkeypatch.setitem(sys.modules, "pitstop.server", server := types.ModuleType("pitstop.server"))
    server.run = lambda *configs: calls.append(configs)
    [arguments] = [word.removeprefix("ARGS=") for word in shlex.split(command) if word.startswith("ARGS=")]
    model = toy_gguf.write_toy_gguf(tmp_path / "toy.gguf")
    monkeypatch.setattr(sys, "argv", ["pitstop", "serve", str(model), *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        pitstop.cli.main()
    assert not ended.value.code
    assert len(calls) == 1


@pytest.mark.parametrize("command", matching(LOCAL))
def test_commands_that_need_no_model(command: str, tmp_path: Path) -> None:
    done = subprocess.run(own_process(command), capture_output=True, text=True, timeout=60, check=False)
    if command.endswith("doctor"):  # 1 when the port is taken on this machine
        assert done.returncode in (0, 1)
        assert "native kernels" in done.stdout
    else:
        assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def environment(model_path: Path) -> dict[str, str]:
    """The default model is here, so that no command fetches it."""
    assert fetch.locate(fetch.DEFAULT_MODEL) == model_path
    return dict(os.environ, PITSTOP_API_KEYS="")


@pytest.fixture(scope="module")
def address(environment: dict[str, str]) -> Iterator[str]:
    """`pitstop serve` as the README starts it, on a free port: "127.0.0.1:PORT"."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "pitstop.cli", "serve", "--port", str(port), "--kv-memory", "256MiB", "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as server:
        try:
            lines = []
            while (line := server.stdout.readline()) and "curl" not in line:
                lines.append(line)
            assert f"http://127.0.0.1:{port}/v1/chat/completions" in line, f"the server did not start: {lines}"
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)


@pytest.mark.model
@pytest.mark.parametrize("command", matching("curl "))
def test_curl(command: str, address: str) -> None:
    assert shutil.which("curl"), "curl is missing; on Debian: apt install curl"
    words = shlex.split(command.replace("127.0.0.1:8000", address))
    answer = json.loads(run([words[0], "--silent", "--fail-with-body", *words[1:]]))
    assert "Paris" in answer["choices"][0]["message"]["content"]


@pytest.mark.model
@pytest.mark.parametrize("command", matching(KINDS[4]))
def test_chat(command: str, address: str, environment: dict[str, str]) -> None:
    words = own_process(command.replace("127.0.0.1:8000", address))
    assert run([*words, "--max-tokens", "8"], input="Hello\n", env=environment).strip()


@pytest.mark.model
@pytest.mark.parametrize("command", matching(KINDS[3]))
def test_generate(command: str, environment: dict[str, str]) -> None:
    assert "Paris" in run(own_process(command), env=environment)


@pytest.mark.model
@pytest.mark.parametrize("command", matching(KINDS[6]))
def test_kv_report(command: str, environment: dict[str, str]) -> None:
    """The figures in the text are those that it prints."""
    report = json.loads(run([*own_process(command), "--json"], env=environment))
    bits = {row["codec"]: f"{row['own']['8192']:.1f}" for row in report["rows"]}
    for page, unit in ((ENGLISH, "bits"), (CHINESE, "位")):
        section = page.read_text(encoding="utf-8").partition(command)[2].partition("\n## ")[0]
        for codec in ("int8", "int4"):
            assert f"{bits[codec]} {unit}" in section, f"{page.name}: {codec} takes {bits[codec]} bits"


SHORT_VERIFY = """
import sys
import pitstop.cli
from pitstop.verify import functional, suite

suite.QUICK = suite.Lengths(load=2, soak=3, rate=10, text=64)
module, load_cases = sys.modules["pitstop.verify.functional.run"], functional.load_cases
module.load_cases = lambda only: load_cases("Usage counts tokens")
sys.argv = ["pitstop", *sys.argv[1:]]
pitstop.cli.main()
"""


def test_verify(tmp_path: Path) -> None:
    """The commands in their order, with little load, against the front without a model: the page is there, whatever the verdict is."""
    with fake_server() as server:
        for command in matching(KINDS[7]):
            words = shlex.split(command.replace("http://127.0.0.1:8000", server.url))[1:]
            done = subprocess.run(
                [sys.executable, "-c", SHORT_VERIFY, *words], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
            )
            assert re.search(r"^(PASS|FAIL)$", done.stdout, re.MULTILINE)[0] == ("FAIL" if done.returncode else "PASS"), done.stderr
    assert {path.name for path in (tmp_path / "verify-report").iterdir()} == {"report.html", "report.json", "junit.xml", "again.html"}
    for tier in ("functional", "load", "soak"):
        assert f'id="{tier}"' in (tmp_path / "verify-report" / "again.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", matching(KINDS[8]))
def test_upgrade(command: str) -> None:
    with fake_server("--admin") as server:
        assert run([*own_process(command), "--url", server.url]).endswith("Done: the new worker serves.\n")


@pytest.mark.model
@pytest.mark.parametrize("code", [code for code in blocks(ENGLISH, "python") if "OpenAI(" in code])
def test_client(code: str, address: str, environment: dict[str, str]) -> None:
    assert run([sys.executable, "-c", code.replace("127.0.0.1:8000", address)], env=environment).strip()


@pytest.mark.model
@pytest.mark.parametrize("code", [code for code in blocks(ENGLISH, "python") if "LLM(" in code])
def test_batch(code: str, environment: dict[str, str]) -> None:
    printed = run([sys.executable, "-c", code], env=environment)
    assert "Paris" in printed
    assert printed.rstrip().endswith(("length", "stop"))
