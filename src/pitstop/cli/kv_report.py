"""`pitstop kv-report`: what each KV codec costs, in bits a value, with everything counted."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.options import ModelOption, get_model, show_size
from pitstop.errors import Unsupported
from pitstop.models.weights.fetch import DEFAULT_MODEL

if TYPE_CHECKING:
    from pitstop.kv.report import Row

RULE = "8 bits, min(128, n // 256)"
NOTES = """\
Bits a value, mean over 128 consecutive lengths: codes, scales, zeros, padding, lead pages and the open 16-bit segment of 128 tokens.
A stream's own: its pages and one open segment. A pool for 1 or 32: also the open segments that `serve --max-running 1` or 32 reserves
for prefill, copies and the prefix cache, while so many streams of that length run.
The last line is the rule that shortens segments in short sequences, read as: 8-bit codes, for a head's keys and for its values one least
and one largest value of 16 bits a segment, all of a stream cut alike, the open segment as long as the others."""


def kv_report(
    model: ModelOption = DEFAULT_MODEL,
    codec: Annotated[list[str] | None, typer.Option(help="Only this codec; may be given several times.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print how many bits each KV codec takes for a value of the model's cache, everything counted, at 1K to 128K tokens."""
    path = get_model(model)
    from pitstop import codecs
    from pitstop.kv.report import LENGTHS, rows, ruled_bits
    from pitstop.models.encoder_config import EncoderConfig
    from pitstop.models.weights.source import open_model

    config = open_model(path).config
    if isinstance(config, EncoderConfig):
        raise Unsupported(f"{path}: {config.architecture} is an encoder, which has no KV cache")
    shape = config.kv_shape
    found = rows([codecs.get(name) for name in codec or codecs.names()], shape)
    ruled = {length: ruled_bits(shape.head_dim, length) for length in LENGTHS}
    if as_json:
        print(json.dumps({"model": path.name, "shape": asdict(shape), "rows": [asdict(row) for row in found], "rule": ruled}))
        return
    print(f"{path.name}: {shape.layers} layers, {shape.kv_heads} key-value heads of {shape.head_dim}\n")
    _print_table([row for row in found if not row.refused], ruled)
    for row in found:
        if row.refused:
            print(f"{row.codec} cannot serve this model: {row.refused}")
    print(f"\n{NOTES}")


def _print_table(found: list[Row], ruled: dict[int, float]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("codec", "page", "counted")
    for length in ruled:
        table.add_column(f"{length // 1024}K", justify="right")
    for row in found:
        size = show_size(row.page_bytes) + (f", first {1 + row.lead_pages}" if row.lead_pages else "")
        ways = {"a stream's own": row.own} | {f"a pool for {streams}": bits for streams, bits in row.pool.items()}
        for index, (way, bits) in enumerate(ways.items()):
            head = () if index else (row.codec, size)
            table.add_row(*(head or ("", "")), way, *(f"{value:.2f}" for value in bits.values()), end_section=index == len(ways) - 1)
    table.add_row(RULE, "", "a stream's own", *(f"{value:.2f}" for value in ruled.values()))
    Console(soft_wrap=True).print(table)
