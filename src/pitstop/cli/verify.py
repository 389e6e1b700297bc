"""`pitstop verify`: is a server right, fast enough, and still so after hours?"""

from __future__ import annotations

import importlib.util
import os
import re
from typing import Annotated

import typer
from typer.core import TyperGroup

from pitstop.errors import ConfigError, how_to_install

KEY = "PITSTOP_VERIFY_KEY"
EXTRA = ("locust", "yaml", "junitparser", "matplotlib")


class _URLFirst(TyperGroup):
    """`pitstop verify URL` is `pitstop verify all URL`, wherever its options stand."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:
        if any(map(_like_an_address, args[:1])) or (args and args[0].startswith("-") and any(map(_like_an_address, args[1:]))):
            args = ["all", *args]
        return super().parse_args(ctx, args)


def _like_an_address(text: str) -> bool:
    """An URL, or what somebody means as one: 127.0.0.1:8000, localhost, gpu1.example."""
    return bool(re.fullmatch(r"\w+://\S*|localhost(:\d+)?(/\S*)?|\[[0-9a-f:]+\]\S*|[\w.-]+:\d+(/\S*)?|\w[\w-]*(\.[\w-]+)+", text))


def address(text: str) -> str:
    """The server's address as it stands. Raises typer.BadParameter when it lacks its scheme."""
    if not re.match(r"https?://[^/\s]", text):
        advice = "begins with http:// or https://" if "://" in text else f"needs its scheme: http://{text}"
        raise typer.BadParameter(f"{text!r} is no address of a server; it {advice}")
    return text


app = typer.Typer(cls=_URLFirst, no_args_is_help=True)


@app.callback()
def group() -> None:
    """Verify any OpenAI-compatible server: `pitstop verify URL` runs the functional, load and soak tiers and ends in one verdict.

    An API key is read from PITSTOP_VERIFY_KEY.
    """
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"verify needs {', '.join(missing)}: run `make env`, or {how_to_install('verify')}")


URL = Annotated[str, typer.Argument(help="The server, like http://127.0.0.1:8000.", callback=address)]
ModelName = Annotated[str, typer.Option("--model", help="Its model; by default the first that it lists.")]


def key() -> str:
    """The server's API key. Not an option, so that it does not show in a process list."""
    return os.environ.get(KEY, "")
