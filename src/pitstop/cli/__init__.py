"""The command line: one thin file per verb. Importing it imports neither torch nor the server; a verb imports what it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pitstop import __version__
from pitstop.cli import (
    chat,
    doctor,
    generate,
    kv_report,
    models,
    quantize,
    replay,
    serve,
    upgrade,
    verify,
    verify_all,
    verify_functional,
    verify_load,
    verify_quality,
    verify_soak,
)
from pitstop.errors import PitstopError

app = typer.Typer(
    name="pitstop",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("upgrade")(upgrade.upgrade)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.add_typer(models.app, name="models")
app.command("doctor")(doctor.doctor)
app.command("kv-report")(kv_report.kv_report)
app.command("quantize")(quantize.quantize)
app.command("replay")(replay.replay)
verify.app.command("all")(verify_all.verify_all)
verify.app.command("report")(verify_all.verify_report)
verify.app.command("functional")(verify_functional.functional)
verify.app.command("load")(verify_load.load)
verify.app.command("soak")(verify_soak.soak)
verify.app.command("quality")(verify_quality.quality)
app.add_typer(verify.app, name="verify")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pitstop {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Serve a language model on this machine through the OpenAI API.

    Start with `pitstop serve`: it fetches a small model once and answers on http://127.0.0.1:8000.
    """


def main() -> None:
    """Run the command line and exit: 0 done, 1 an error of ours (one red line on stderr), 2 wrong usage, 130 Ctrl-C."""
    try:
        app(prog_name="pitstop")
    except PitstopError as error:
        typer.secho(f"pitstop: {error}", fg="red", err=True)
        sys.exit(1)
