"""The attention kernel's configurations, compiled for GPUs that need not be here: registers, shared memory, spills, occupancy, bank
conflicts.

python bench/gpu_table.py [--write]      prints the table, or puts it between the marks in docs/gpu.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pitstop import codecs
from pitstop.ops.attention import ahead
from pitstop.ops.attention.plan import Heads, Plan, Span, fixed, plan
from pitstop.ops.chip import A100, H200, Chip
from pitstop.types import KVShape

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
MARKS = ("<!-- table: bench/gpu_table.py -->", "<!-- end of table -->")
CHIPS = {"sm_80": A100, "sm_90": H200}
HEADS = {64: Heads(9, 3, 64), 80: Heads(32, 8, 80), 96: Heads(32, 8, 96), 128: Heads(32, 8, 128), 256: Heads(8, 4, 256)}
STEPS = {"decode": [Span(1, 4096)] * 32, "prefill": [Span(128, 128 * i) for i in range(1, 17)]}
CODECS = ("raw16", "int8", "int4")
COLUMNS = (
    "chip",
    "head",
    "KV",
    "step",
    "plan",
    "columns",
    "stages",
    "registers",
    "shared, KB",
    "spilled",
    "blocks an SM",
    "warps of 64",
    "conflicts",
)


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


def row(chip: str, heads: Heads, codec: str, step: str, name: str, chosen: Plan) -> str:
    target: Chip = CHIPS[chip]
    compiled = ahead.compile_plan(chosen, heads, codecs.get(codec).layout, target)
    blocks = ahead.resident(compiled, chosen, target)
    conflicts, best = ahead.conflicts(compiled)
    cells = (
        chip, heads.head_dim, codec, step, name, chosen.columns, chosen.stages, compiled.registers, f"{compiled.shared / 1024:.0f}",
        compiled.frame, blocks, blocks * chosen.warps, f"{conflicts} of {conflicts + best}",
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/gpu.md")
    arguments = parser.parse_args()
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for configuration in configurations():
        lines.append(row(*configuration))
        if not arguments.write:
            print(lines[-1], flush=True)
    if arguments.write:
        text = PAGE.read_text()
        before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
        PAGE.write_text(before + MARKS[0] + "\n" + "\n".join(lines) + "\n" + MARKS[1] + after)


if __name__ == "__main__":
    main()
