"""`pitstop replay`: the last plans of a worker that died, once more."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer


def replay(
    file: Annotated[Path, typer.Argument(help="One of the files that the server's log names, in the directory crashes of the cache.")],
) -> None:
    """Run the last plans before a worker's death again, in a process of their own, and say whether that dies, too.

    The tokens of prompts and answers are in the file if `pitstop serve` ran with --record-prompts; else random ones stand for them.
    Exit status: 0 it ran through, 1 it died again, 2 it could not be run.
    """
    done = subprocess.run([sys.executable, "-m", "pitstop.engine.replay", str(file)], check=False)
    if done.returncode == 2:
        raise typer.Exit(2)
    if done.returncode:
        how = f"was killed by {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"ended with status {done.returncode}"
        typer.secho(f"It dies again: the process {how} in the plan named last.", fg="red")
        raise typer.Exit(1)
    print("It does not die: all plans ran.")
