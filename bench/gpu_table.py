"""The kernels' configurations, compiled for GPUs that need not be here: registers, shared memory, spills, occupancy, bank conflicts.

python bench/gpu_table.py [--only attention|products|rows] [--write]      prints tables, or puts them between their marks in docs/gpu.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pitstop import codecs
from pitstop.ops import ahead as compiler
from pitstop.ops import row_ahead
from pitstop.ops.ahead import Compiled, Planned
from pitstop.ops.attention import ahead
from pitstop.ops.attention.plan import Heads, Plan, Span, fixed, plan
from pitstop.ops.chip import A100, H200, Chip
from pitstop.ops.linear import ahead as linear_ahead
from pitstop.ops.linear import plan as products
from pitstop.types import KVShape

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
MARKS = {
    "attention": ("<!-- table: bench/gpu_table.py -->", "<!-- end of table -->"),
    "products": ("<!-- table of products: bench/gpu_table.py -->", "<!-- end of products -->"),
    "rows": ("<!-- table of rows: bench/gpu_table.py -->", "<!-- end of rows -->"),
}
CHIPS = {"sm_80": A100, "sm_90": H200}
HEADS = {64: Heads(9, 3, 64), 80: Heads(32, 8, 80), 96: Heads(32, 8, 96), 128: Heads(32, 8, 128), 256: Heads(8, 4, 256)}
STEPS = {"decode": [Span(1, 4096)] * 32, "prefill": [Span(128, 128 * i) for i in range(1, 17)]}
CODECS = ("raw16", "int8", "int4")
PRODUCTS = {"qkv": (6144, 4096), "gate·up": (28672, 4096), "down": (4096, 14336)}
ROWS = (1, 64, 2048)
CODES = ("4", "8", "int8", "f16", "bf16")
COMPILED = ("registers", "shared, KB", "spilled", "blocks an SM", "warps of 64", "conflicts")
COLUMNS = {
    "attention": ("chip", "head", "KV", "step", "plan", "columns", "stages", *COMPILED),
    "products": ("chip", "weights", "product", "rows", "plan", "outputs", "columns", "stages", "blocks a tile", *COMPILED),
    "rows": ("chip", "kernel", "warps a block", "loads of 16 bytes", *COMPILED),
}


def configurations() -> Iterator[tuple[str, Heads, str, str, str, Plan]]:
    """(chip, heads, codec, step, planner or fixed, plan), those that are refused left out."""
    for chip in CHIPS:
        for heads in HEADS.values():
            for codec in CODECS:
                for step, spans in STEPS.items():
                    for name, choose in (("planned", plan), ("fixed tile", fixed)):
                        if name == "planned" or heads.head_dim == 128:
                            chosen = choose(spans, heads, codecs.get(codec).layout, CHIPS[chip])
                            if isinstance(chosen, Plan) and supported(codec, heads):
                                yield chip, heads, codec, step, name, chosen


def supported(codec: str, heads: Heads) -> bool:
    return codecs.get(codec).supports(KVShape(1, heads.kv_heads, heads.head_dim), "cuda") is None


def attention() -> Iterator[tuple[object, ...]]:
    for chip, heads, codec, step, name, chosen in configurations():
        compiled = ahead.compile_plan(chosen, heads, codecs.get(codec).layout, CHIPS[chip])
        yield chip, heads.head_dim, codec, step, name, chosen.columns, chosen.stages, *facts(compiled, chosen, CHIPS[chip])


def all_products() -> Iterator[tuple[object, ...]]:
    """Of an 8B shape. The fixed tile beside where weights have 4 bits."""
    for chip in CHIPS:
        for codes in CODES:
            for name, sizes in PRODUCTS.items():
                for rows in ROWS:
                    shape = products.Shape(rows, *sizes, codes)
                    for kind, choose in (("planned", products.plan), ("fixed tile", products.fixed)):
                        if kind == "planned" or codes == "4":
                            chosen = choose(shape, CHIPS[chip])
                            compiled = linear_ahead.compile_plan(chosen, shape, CHIPS[chip])
                            tile = chosen.outs, chosen.columns, chosen.stages, chosen.splits
                            yield chip, codes, name, rows, kind, *tile, *facts(compiled, chosen, CHIPS[chip])


def rows() -> Iterator[tuple[object, ...]]:
    """Of an 8B shape."""
    launches = row_ahead.launches(4096, 14336, 128, 128256, {codec: codecs.get(codec).layout for codec in CODECS})
    for chip in CHIPS:
        for name, launch in launches.items():
            compiled = row_ahead.compiled(launch, CHIPS[chip])
            yield chip, name, launch.warps, f"{compiled.wide_share:.0%}", *facts(compiled, launch, CHIPS[chip])


def facts(compiled: Compiled, chosen: Planned, chip: Chip) -> tuple[object, ...]:
    blocks = compiler.resident(compiled, chosen, chip)
    conflicts, best = compiler.conflicts(compiled)
    shared = f"{compiled.shared / 1024:.0f}"
    return compiled.registers, shared, compiled.frame, blocks, blocks * chosen.warps, f"{conflicts} of {conflicts + best}"


TABLES = {"attention": attention, "products": all_products, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=TABLES)
    parser.add_argument("--write", action="store_true", help="into docs/gpu.md")
    arguments = parser.parse_args()
    for name in (arguments.only,) if arguments.only else TABLES:
        lines = ["| " + " | ".join(COLUMNS[name]) + " |", "|" + " --- |" * len(COLUMNS[name])]
        print(*lines, sep="\n")
        for cells in TABLES[name]():
            lines.append("| " + " | ".join(map(str, cells)) + " |")
            print(lines[-1], flush=True)
        if arguments.write:
            start, end = MARKS[name]
            text = PAGE.read_text()
            PAGE.write_text(text.split(start)[0] + start + "\n" + "\n".join(lines) + "\n" + end + text.split(end)[1])


if __name__ == "__main__":
    main()
