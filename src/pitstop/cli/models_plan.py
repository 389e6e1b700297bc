"""`pitstop models plan`: what a model consists of and what would hold it, without its weights."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.options import show_size
from pitstop.models.weights import fetch

if TYPE_CHECKING:
    from pitstop.models.plan import Plan

_CODECS = ("raw16", "int8", "int4")


def plan_model(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="xai-org/grok-1, xai-org/grok-2, a name from `pitstop models list`, or a path.")
    ],
    summary: Annotated[bool, typer.Option("--summary", help="Leave out the list of tensors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every tensor of a model with its shape, file and bytes, the KV cache's bytes a token, and what hardware would hold it.

    Nothing is fetched. Of a folder config.json is enough; what lies beside it is looked at, not read.
    """
    from pitstop.models.plan import RELEASES, plan

    found = plan(model if model in RELEASES else str(fetch.locate(model)))
    kv = _kv_bytes(found)
    if as_json:
        totals = {"model": found.name, "bytes": found.nbytes, "read_for_a_token": found.read_for_a_token(), "parts": found.by_part()}
        print(json.dumps(totals | {"kv_bytes_a_token": kv, "tensors": [asdict(tensor) for tensor in found.tensors]}))
        return
    if not summary:
        for tensor in found.tensors:
            shape = "[" + ", ".join(map(str, tensor.shape)) + "]"
            print(f"{tensor.file or '-':46} {tensor.name:62} {shape:24} {tensor.stored:28} {tensor.nbytes:>15,}")
        print()
    _print_totals(found, kv)
    _print_hardware(found, kv["int8"])


def _kv_bytes(found: Plan) -> dict[str, float]:
    """A token's share of a sealed segment in all layers, by codec."""
    from pitstop import codecs
    from pitstop.types import SEGMENT

    shape = found.config.kv_shape
    return {name: shape.layers * codecs.get(name).page_bytes(shape) / SEGMENT for name in _CODECS}


def _print_totals(found: Plan, kv: dict[str, float]) -> None:
    c = found.config
    print(f"{found.name}: {c.layers} layers, width {c.width}, {c.heads} heads and {c.kv_heads} key-value heads of {c.head_dim}, ", end="")
    print(f"{c.moe.experts} experts, {c.moe.top_k} for a token, " if c.moe else "", end="")
    print(f"context {c.context:,}\n")
    for part, size in found.by_part().items():
        print(f"{part:>20} {size:>18,} bytes  {size / found.nbytes:6.1%}")
    print(f"{'all':>20} {found.nbytes:>18,} bytes  {show_size(found.nbytes)}")
    read = found.read_for_a_token()
    print(f"{'read for a token':>20} {read:>18,} bytes  {read / found.nbytes:6.1%}")
    each = ", ".join(f"{size:,.0f} as {name}" for name, size in kv.items())
    print(f"\nKV cache, bytes a token: {each}; a context of {c.context:,}: {show_size(int(kv['int8'] * c.context))} as int8\n")


def _print_hardware(found: Plan, kv: float) -> None:
    from pitstop.roofline.hardware import ACCELERATORS, read_seconds, together

    size = found.nbytes + kv * found.config.context
    print(f"To hold weights as stored and one context of KV in int8, {show_size(int(size))}:")
    for accelerator in ACCELERATORS:
        needed = accelerator.needed(size)
        count = together(needed)
        least = read_seconds(found.read_for_a_token(), accelerator, count)
        used = "" if count == needed else f", {count} where heads divide evenly"
        print(f"  {needed:>3} × {accelerator.name}{used}: at least {least * 1e3:.2f} ms a token for one stream")
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    print(f"  this machine's memory, {show_size(here)}: {'holds it' if size < 0.9 * here else 'too small'}")
