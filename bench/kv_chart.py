"""The quality of KV caches as a picture: loss against bits for each text, and the table below."""

from __future__ import annotations

import sys
from pathlib import Path

COLOURS = {"english": "tab:blue", "code": "tab:orange", "chinese": "tab:green"}


def draw(rows: list[dict], path: str) -> bool:
    """rows: as kv_quality prints them. Whether a picture was made: without matplotlib, a line says so."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no chart: matplotlib is missing (make env)", file=sys.stderr)
        return False
    columns = list(dict.fromkeys((row["text"], row["context"]) for row in rows))
    names = list(dict.fromkeys(row["codec"] for row in rows))
    figure = Figure(figsize=(4 + 1.5 * len(columns), 6 + 0.3 * len(names)), layout="constrained")
    chart, table = figure.subplots(2, 1, height_ratios=(5, 0.3 * len(names) + 0.6))
    shortest = min(context for _, context in columns)
    for text, colour in COLOURS.items():
        shown = [row for row in rows if (row["text"], row["context"]) == (text, shortest)]
        for theirs, marker in ((False, "o"), (True, "x")):
            points = [(row["bits_8k"], row["kld_mean"]) for row in shown if row["codec"].startswith("llama.cpp") == theirs]
            label = f"{text}, {'llama.cpp' if theirs else 'Pitstop'}"
            chart.scatter(*zip(*points, strict=True), color=colour, marker=marker, label=label) if points else None
        for row in shown if text == columns[0][0] else ():
            chart.annotate(row["codec"], (row["bits_8k"], row["kld_mean"]), xytext=(4, 4), textcoords="offset points", fontsize=7)
    chart.set(yscale="log", xlabel="bits a value at 8K, everything counted", ylabel="mean KL divergence (nats)")
    chart.set_title(f"KV caches: loss against size, windows of {shortest} tokens")
    chart.grid(alpha=0.3)
    chart.legend(fontsize=7)
    cells = {(row["codec"], row["text"], row["context"]): row for row in rows}
    body = []
    for name in names:
        own = [cells.get((name, *column)) for column in columns]
        bits = next(row for row in own if row)
        body.append([f"{bits['bits_8k']:.2f} / {bits['bits_32k']:.2f}", *(f"{row['kld_mean']:.2g}" if row else "" for row in own)])
    heads = ["bits 8K / 32K", *(f"KL {text} {context}" for text, context in columns)]
    table.axis("off")
    table.table(cellText=body, rowLabels=names, colLabels=heads, loc="center").set_fontsize(8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return True
