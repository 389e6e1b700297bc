"""`pitstop quantize`: write a model in 8 or 4 bits, and say what that changed."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pitstop.cli.options import Model, Threads, finite, get_model

if TYPE_CHECKING:
    from pitstop.precision.quantize import Result


def quantize(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write; it must not be there yet.")],
    bits: Annotated[int, typer.Option(help="Of a weight: 8 or 4.")] = 4,
    group: Annotated[
        int,
        typer.Option(help="Inputs that share a scale. 0: 32 with 8 bits; 128 with 4, or 64 or 32 where that does not divide. -1: all."),
    ] = 0,
    symmetric: Annotated[
        bool, typer.Option("--symmetric/--asymmetric", help="Grids around 0, or from least to largest weight, with 4 bits.")
    ] = True,
    calibrate: Annotated[
        str, typer.Option(metavar="FILE", help="Round by what this text makes of the model; built-in: by a text that is here.")
    ] = "",
    qat: Annotated[
        str, typer.Option(metavar="FILE", help="Train on this text with the rounding in the loop: plain, or *.jsonl of conversations.")
    ] = "",
    heldout: Annotated[
        str, typer.Option(metavar="FILE", help="Measure on this text. Else on the end of the other, or on a short one that is here.")
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 200,
    lr: Annotated[float, typer.Option(min=0, callback=finite, help="Learning rate.")] = 1e-4,
    batch: Annotated[int, typer.Option(min=1, help="Sequences a step.")] = 2,
    length: Annotated[int, typer.Option(min=1, help="Tokens a sequence.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of the sequences.")] = 0,
    objective: Annotated[
        Literal["distil", "tokens"], typer.Option(help="distil: to give what the model gave before. tokens: to give the text.")
    ] = "distil",
    threads: Threads = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write MODEL to the folder OUT with its matrices in 8 or 4 bits, in the layout of compressed-tensors, and measure what that changed.

    Embedding, head, norms and routers stay in 16 bits. The report is in OUT/quantize.json, too. Training (--qat) can be stopped by Ctrl-C
    and goes on when the same command is given again.
    """
    path = get_model(model)
    from pitstop.precision.quantize import REPORT, Wish
    from pitstop.precision.quantize import quantize as run
    from pitstop.precision.training import Interrupted, Training

    training = Training(steps=steps, lr=lr, batch=batch, length=length, seed=seed, objective=objective)
    command = shlex.join(["pitstop", *sys.argv[1:]])
    wish = Wish(bits, group, symmetric, calibrate, qat, heldout, training, threads, command)
    try:
        result = run(path, out, wish)
    except Interrupted as stopped:
        typer.secho(f"pitstop: {stopped}", fg="yellow", err=True)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(json.loads((out / REPORT).read_text())))
    else:
        _print_result(result)


def _print_result(result: Result) -> None:
    rows = {"rounded": result.rounded} | ({"trained": result.trained} if result.trained else {})
    print(f"{'':10}{'perplexity':>12}{'KL mean':>12}{'KL 99.9 %':>12}{'same top':>10}   of {result.rounded.tokens} tokens")
    print(f"{'before':10}{result.rounded.reference_perplexity:12.4f}")
    for name, row in rows.items():
        print(f"{name:10}{row.perplexity:12.4f}{row.kl_mean:12.6f}{row.kl_p999:12.4f}{row.same_top:10.2%}")
    if result.won_back is not None:
        print(f"training won back {result.won_back:.0%} of the KL divergence of rounding")
    print(f"{result.folder} is written: pitstop serve {result.folder}")
