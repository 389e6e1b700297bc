"""`pitstop models`: which models have a name, and fetching one, or one of a hub."""

from __future__ import annotations

from typing import Annotated

import typer

from pitstop.cli.models_plan import plan_model
from pitstop.cli.options import get_model, show_size
from pitstop.models.weights import fetch

app = typer.Typer(no_args_is_help=True, help="List the models that have a name, fetch one, or plan for one.")
app.command("plan")(plan_model)


@app.command("list")
def list_models() -> None:
    """List the models that have a name. Any .gguf file or Hugging Face folder can be served by its path as well."""
    for model in fetch.MODELS.values():
        here = fetch.locate(model.name)
        state = str(here) if here.exists() else f"not here yet: pitstop models pull {model.name}"
        default = " (default)" if model.name == fetch.DEFAULT_MODEL else ""
        print(f"{model.name}{default}\n  {model.about}\n  {show_size(model.size)}, {model.licence}\n  {state}")


@app.command("pull")
def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name from `pitstop models list`, or of a hub: ORG/NAME, or ORG/NAME/FILE.gguf.")
    ] = fetch.DEFAULT_MODEL,
) -> None:
    """Fetch a model. Nothing is done when it is here; a broken transfer goes on where it stopped.

    Of a named model the sha256 is checked. The hub is the one that HF_ENDPOINT names, else the public one; HF_TOKEN opens what is private.
    """
    print(get_model(name))
