"""What the Triton kernels answer: errors relative to the largest value, and bits that differ. test_triton.py judges.

A program for interpreter.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from interpreter import main

from pitstop.ops import attention, dispatch
from pitstop.ops.attention import triton
from pitstop.ops.attention.launches import Launches
from pitstop.ops.attention.layout import RAW16, Layout, Plane
from pitstop.ops.attention.plan import Heads, Plan, Span, plan, schedule
from pitstop.ops.attention.ref import Inputs, make_inputs
from pitstop.ops.chip import H200

HALF = torch.float16
DEVICE = "cuda" if torch.cuda.is_available() and __name__ != "__main__" else "cpu"
LAYOUTS = {
    "raw": RAW16,
    "8 bits": Layout(Plane(8, "channel"), Plane(8, "token")),
    "4 bits and a lead": Layout(Plane(4, "channel"), Plane(4, "token"), lead=8),
    "8 and 4 bits, the other axes": Layout(Plane(8, "token"), Plane(4, "channel")),
    "a range a segment": Layout(Plane(8, "segment"), Plane(8, "segment")),
}
STREAMS = [(300, 1), (120, 20), (126, 4), (0, 3)]


def written(inputs: Inputs, layout: Layout) -> Inputs:
    tails, pages = inputs.tails.clone(), inputs.pages.clone()
    with dispatch.use("ref"):
        attention.append(inputs.k, inputs.v, tails, inputs.items)
        attention.seal(tails, pages, inputs.items, inputs.table, layout)
    return inputs._replace(tails=tails, pages=pages)


def answer(inputs: Inputs, layout: Layout, backend: str = "triton", **scores: float) -> torch.Tensor:
    device = DEVICE if backend == "triton" else "cpu"
    memory = (inputs.q, inputs.tails, inputs.pages, inputs.items, inputs.table)
    with dispatch.use(backend):
        return attention.paged_attention(*(tensor.to(device) for tensor in memory), layout, 0.2, **scores).cpu()


def error(inputs: Inputs, layout: Layout, **scores: float) -> float:
    difference = (answer(inputs, layout, **scores) - answer(inputs, layout, "ref", **scores)).abs().max()
    return float(difference / max(values.abs().max() for values in inputs.values))


def small(layout: Layout, streams: list[tuple[int, int]] = STREAMS, dim: int = 64, share: int = 3, kv_heads: int = 2) -> Inputs:
    return written(make_inputs(1, streams, heads=share * kv_heads, kv_heads=kv_heads, dim=dim, dtype=HALF, layout=layout), layout)


def layouts() -> dict[str, float]:
    """Of two KV heads for one layout of each width, of one for the others: their tiles are read alike."""
    heads = dict.fromkeys(LAYOUTS, 1) | {"raw": 2, "4 bits and a lead": 2}
    return {name: error(small(layout, kv_heads=heads[name]), layout) for name, layout in LAYOUTS.items()}


def dims() -> dict[str, float]:
    found = {f"{dim}": error(small(RAW16, [(130, 2)], dim, 4, 1), RAW16) for dim in (80, 96, 128, 256)}
    four = LAYOUTS["4 bits and a lead"]
    return found | {f"{dim} of 4 bits": error(small(four, [(258, 2)], dim, 4, 1), four) for dim in (96, 128)}


def scores() -> dict[str, float]:
    cases = {
        "cap": {"softcap": 5.0},
        "window": {"window": 100},
        "window of a segment": {"window": 129},
        "window of one": {"window": 1},
        "temperature": {"temperature_length": 8},
        "temperature, then a cap": {"temperature_length": 8, "softcap": 1.5},
        "a cap, then temperature": {"temperature_length": 8, "softcap": 1.5, "cap_first": True},
    }
    inputs = small(LAYOUTS["8 bits"])
    return {name: error(inputs, LAYOUTS["8 bits"], **case) for name, case in cases.items()}


def edge() -> dict[str, float]:
    return {"window of one": error(small(RAW16, [(126, 4)], share=1, kv_heads=1), RAW16, window=1)}


def unseen() -> dict[str, float]:
    """Bits that change with memory that no row sees; a window of nothing."""
    found = {}
    for name in ("raw", "8 bits"):
        layout = LAYOUTS[name]
        inputs = small(layout, [(250, 6)])
        for window in (-1, 7, 100):
            expected = answer(inputs, layout, window=window)
            other = inputs._replace(tails=inputs.tails.nan_to_num(nan=6e4), pages=inputs.pages.clone())
            if window == 7:
                other.pages[inputs.table[0]] = 0xFF
            if window == 100 and name == "8 bits":  # ranges of tokens before every row's window, which ends at 151
                planes = other.pages[inputs.table[1], : 2 * (layout.keys.bytes(64) + layout.values.bytes(64))].view(2, -1)
                ranges = planes[:, layout.keys.bytes(64) + layout.values.code_bytes(64) :].view(torch.int16)
                ranges[:, :20] = ranges[:, 128:148] = -1
            found[f"{name}, window {window}"] = different(answer(other, layout, window=window), expected)
        nothing = answer(inputs._replace(tails=torch.full_like(inputs.tails, torch.nan)), layout, window=0)
        found[f"{name}, seeing nothing"] = different(nothing, torch.zeros_like(nothing))
    return found


def different(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.contiguous().view(torch.int32) != expected.contiguous().view(torch.int32)).sum())


def launched(inputs: Inputs, layout: Layout, **changes: int) -> torch.Tensor:
    """The answer of a plan that is changed so."""
    _, heads, dim = inputs.q.shape
    shape, items = Heads(heads, inputs.k.shape[1], dim), inputs.items.tolist()
    chosen = plan([Span(count, start + count) for _, count, start, _, _, _ in items], shape, layout, H200)
    assert isinstance(chosen, Plan)
    chosen = replace(chosen, **changes)
    launch = triton.prepare(chosen, schedule(items, chosen), torch.device(DEVICE))
    q, tails, pages, table = (tensor.to(DEVICE) for tensor in (inputs.q, inputs.tails, inputs.pages, inputs.table))
    return triton.run(q, tails, pages, table, launch, layout, triton.Scores(0.2), torch.full_like(q, torch.nan)).cpu()


def splits() -> dict[str, float]:
    """Bits that differ where blocks share rows, groups included (11 segments and 17); the rows beside them are the answer's, too."""
    found = {}
    for name in ("raw", "4 bits and a lead"):
        layout = LAYOUTS[name]
        inputs = small(layout, [(1300, 2), (2100, 1), (10, 1)], share=2, kv_heads=1)
        whole = launched(inputs, layout, segments=0)
        found[f"{name}, whole"] = float((whole - answer(inputs, layout, "ref")).abs().max())
        for segments in (1, 8, 16):
            found[f"{name}, {segments} a block"] = different(launched(inputs, layout, segments=segments), whole)
    return found


def sized() -> dict[str, float]:
    """Bits that differ between a decode step's own launch and a sized one, two rows of nobody's beside; and rows beyond."""
    found = {}
    for name in ("raw", "8 bits"):
        layout = LAYOUTS[name]
        inputs = small(layout, [(1300, 1), (200, 1), (10, 1)], share=2, kv_heads=1)
        q, tails, pages, items, table = (t.to(DEVICE) for t in (inputs.q, inputs.tails, inputs.pages, inputs.items, inputs.table))
        nobodys = torch.zeros_like(tails[:1])
        memory = torch.cat([q, torch.ones_like(q[:2])]), torch.cat([tails, nobodys]), pages, table
        padding = [(row, 1, 0, len(tails), -1, 0) for row in (3, 4)]
        rows = np.array([*items.tolist(), *padding], np.int32)
        for window in (-1, 300):
            launches = Launches(layout, Heads(2, 1, 64), (window,), torch.device(DEVICE))
            score = triton.Scores(0.2, window=window)
            launches.load(rows)
            own = triton.attend(*memory, launches[window], layout, score)
            for longest in (1300, 1300 + 4 * 1024):
                launches.load(rows, launches.sized([longest, 200, 10, 0, 0]))
                out = torch.full((6, *own.shape[1:]), torch.nan, device=DEVICE)  # a merge of row -1 would write the first
                answer = triton.run(*memory, launches[window], layout, score, out[1:])
                assert len(launches[window].merges)
                found[f"{name}, window {window}, sized for {longest}"] = different(answer, own) + float((~out[0].isnan()).sum())
    return found


CHECKS = {check.__name__: check for check in (layouts, dims, scores, edge, unseen, splits, sized)}


if __name__ == "__main__":
    main(CHECKS, {"triton_kernels": attention})
