"""`pitstop verify quality A B`: how far is B from A, two servers or two configurations that are served for this?"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.verify import key
from pitstop.cli.verify_load import print_outcome
from pitstop.errors import ConfigError, TargetError

if TYPE_CHECKING:
    from pitstop.verify.target import Target

ADMIN_KEY = "PITSTOP_VERIFY_ADMIN_KEY"
START_TIMEOUT = 600.0
STOP_TIMEOUT = 30.0

WHAT = "A server, like http://127.0.0.1:8000, or in quotes what `pitstop serve` takes, like 'smollm2-135m-instruct --kv int4'."


def quality(
    a: Annotated[str, typer.Argument(metavar="A", help=f"The reference. {WHAT}")],
    b: Annotated[str, typer.Argument(metavar="B", help="What is judged; as A.")],
    window: Annotated[int, typer.Option(min=8, help="Tokens in a window of text; its second half is judged.")] = 512,
    windows: Annotated[int, typer.Option(min=1, help="Windows of each text, at most.")] = 2,
    text: Annotated[Path | None, typer.Option(metavar="FILE", help="A text instead of the built-in English, code and Chinese.")] = None,
    slo: Annotated[Path | None, typer.Option(metavar="FILE", help="The limits, as docs/slo.yaml; by default those in it.")] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the outcome here.")] = None,
) -> None:
    """Compare B with A: divergence of their distributions, perplexity, answers that flip, lengths that drift.

    Served configurations are started here and stopped afterwards; the two are asked in turns, so that one computes at a time. A server's
    key is PITSTOP_VERIFY_KEY, that of its /admin/score PITSTOP_VERIFY_ADMIN_KEY. Exits 0 when B is within the limits, else 1.
    """
    import msgspec
    from tqdm import tqdm

    from pitstop.verify.quality import Plan, run
    from pitstop.verify.quality.plan import read_text
    from pitstop.verify.slo import read_slo

    limits = read_slo(slo).quality
    plan = Plan(window, windows, **({"texts": read_text(text)} if text else {}))
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(_target(what)) for what in (a, b)]
        bar = stack.enter_context(tqdm(disable=None, leave=False, bar_format="{desc} {percentage:3.0f} %|{bar:20}| {n}/{total}"))

        def show(phase: str, done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.set_description_str(phase)

        admin_key = os.environ.get(ADMIN_KEY, "")
        outcome = run(*targets, limits, plan, show, tuple("" if "://" not in what else admin_key for what in (a, b)))
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    print_outcome(outcome)
    raise typer.Exit(0 if outcome.passed else 1)


@contextlib.contextmanager
def _target(what: str) -> Iterator[Target]:
    """A server by its address, or one that serves the configuration as long as this lasts."""
    from pitstop.verify.target import connect

    if "://" in what:
        yield connect(what, "", key())
        return
    with _served(shlex.split(what)) as url:
        target = connect(url)
        yield replace(target, facts=target.facts | {"configuration": what})


@contextlib.contextmanager
def _served(words: list[str]) -> Iterator[str]:
    """The address of a `pitstop serve WORDS` of our own, with its admin routes. Raises ConfigError when it does not start."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pitstop.cli", "serve", *words]
    command += ["--host", "127.0.0.1", "--port", str(port), "--admin", "--log-level", "error"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PITSTOP_API_KEYS", "PITSTOP_ADMIN_KEY")}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=environment)
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}", process, said, words)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen, said, words: list[str]) -> None:
    import httpx

    end = time.monotonic() + START_TIMEOUT
    with httpx.Client(base_url=url, trust_env=False) as client:
        while process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if client.get("/readyz").status_code == 200:
                    return
            if time.monotonic() > end:
                raise TargetError(f"{shlex.join(words)!r} is not ready after {START_TIMEOUT:.0f} s")
            time.sleep(0.1)
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines() or [f"it exited with status {process.returncode}"]
    raise ConfigError(f"`pitstop serve {shlex.join(words)}` does not start: {lines[-1].removeprefix('pitstop: ')}")
