"""`pitstop verify` against servers that are started for it: `make verify`.

    python bench/verify.py [--model NAME_OR_PATH] [--against llama.cpp] [--full] [--out docs/verify] [--serve "--kv int8"] […]

The short version takes four minutes, ten more with a peer. Other options, like --slo FILE or --rate 4, go to
`pitstop verify`. Exits as that does.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from streams import free_port, llama_server, running

from pitstop.config import usable_cores
from pitstop.models.weights.fetch import pull
from pitstop.verify import report

ROOT = Path(__file__).parent.parent
SLOTS, CONTEXT = 8, 8192
"""Requests that llama.cpp's server takes at once, and tokens for each."""


@contextmanager
def pitstop(model: str, options: list[str]) -> Iterator[tuple[str, list[str]]]:
    """A Pitstop as a user starts it: its address, and the command."""
    port = free_port()
    words = ["serve", model, "--port", str(port), *options]
    with running([sys.executable, "-m", "pitstop.cli", *words, "--log-level", "warning"], f"http://127.0.0.1:{port}/readyz"):
        yield f"http://127.0.0.1:{port}", ["pitstop", *words]


def verify(options: argparse.Namespace, others: list[str]) -> int:
    """Start the servers, run verify and add to its report how they were started. Its exit status."""
    lines = []
    with ExitStack() as servers:
        url, command = servers.enter_context(pitstop(options.model, shlex.split(options.serve)))
        lines.append(command)
        words = ["verify", url, *([] if options.full else ["--quick"]), *others]
        if options.against:
            model = Path(pull(options.model))
            other, command = servers.enter_context(llama_server(model, usable_cores(), SLOTS, CONTEXT, "--jinja", "--alias", model.stem))
            lines.append(command)
            words += ["--against", other]
        lines.append(["pitstop", *words])
        status = subprocess.run([sys.executable, "-m", "pitstop.cli", *words, "--out", str(options.out)]).returncode
    path = options.out / report.JSON
    if status in (0, 1, 130) and path.exists():
        made = msgspec.structs.replace(report.read(path), command=[shlex.join(line) for line in lines])
        report.write(made, options.out)
        (options.out / report.JUNIT).unlink()
    return status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--against", choices=["llama.cpp"], help="a peer's server beside it")
    parser.add_argument("--full", action="store_true", help="the whole length of every tier")
    parser.add_argument("--serve", default="", help="options of pitstop serve")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "verify")
    sys.exit(verify(*parser.parse_known_args()))


if __name__ == "__main__":
    main()
