"""`pitstop verify`: is a server right, fast enough, and still so after hours?"""

from __future__ import annotations

import os
from typing import Annotated

import typer
from typer.core import TyperGroup

KEY = "PITSTOP_VERIFY_KEY"


class _URLFirst(TyperGroup):
    """`pitstop verify URL` is `pitstop verify all URL`."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:
        if any("://" in arg for arg in args[:1]):
            args = ["all", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_URLFirst, no_args_is_help=True, help="Verify any OpenAI-compatible server.")

URL = Annotated[str, typer.Argument(help="The server, like http://127.0.0.1:8000.")]
ModelName = Annotated[str, typer.Option("--model", help="Its model; by default the first that it lists.")]


def key() -> str:
    """The server's API key. Not an option, so that it does not show in a process list."""
    return os.environ.get(KEY, "")
