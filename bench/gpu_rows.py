"""Everything of a block that is neither a product nor attention: a section of gpu.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from pitstop import codecs
from pitstop.ops import activation, attention, dispatch, norm, rope, sample
from pitstop.ops.sample.draws import Draw
from pitstop.types import SEGMENT

if TYPE_CHECKING:
    from gpu import Bench


class Sizes(NamedTuple):
    """Numbers a row; query and KV heads; rows of the calls."""

    hidden: int
    features: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rows: tuple[int, ...]


REAL = Sizes(4096, 14336, 32, 8, 128, 128256, (1, 64, 2048))
TINY = Sizes(64, 96, 2, 1, 64, 500, (1, 3))
CODECS = ("raw16", "int8", "int4")
DRAWS = {
    "temperature": Draw(1.0, 0, 1.0, 0, 0.5),
    "top_p": Draw(1.0, 0, 0.9, 0, 0.5),
    "top_k and top_p": Draw(0.75, 20, 0.8, 0, 0.5),
    "top_p of a flat row": Draw(100.0, 0, 0.9, 0, 0.5),
}


class Call(NamedTuple):
    """moved: bytes read and written. exact: whether the CPU must answer the same to the bit; else to 1e-5."""

    run: Callable[..., object]
    arguments: tuple[object, ...]
    moved: int
    exact: bool = True


def calls(size: Sizes, rows: int, draw: torch.Generator) -> dict[str, Call]:
    """On the CPU, by name."""
    hidden, features, dim = size.hidden, size.features, size.head_dim
    x, y, weight = (torch.randn(shape, generator=draw) for shape in ((rows, hidden), (rows, hidden), (hidden,)))
    gate_up = torch.randn(rows, 2 * features, generator=draw)
    q = torch.randn(rows, size.heads, dim, generator=draw)
    cos, sin = rope.tables(4096, 10000.0 ** (-torch.arange(0, dim, 2).double() / dim))
    positions = torch.randint(0, 4096, (rows,), generator=draw, dtype=torch.int32)
    found = {
        "rms_norm": Call(norm.rms_norm, (x, weight, 1e-6), 2 * x.nbytes, exact=False),
        "add_rms_norm": Call(norm.add_rms_norm, (x, y, weight, 1e-6), 4 * x.nbytes, exact=False),
        "silu_mul": Call(activation.silu_mul, (gate_up,), gate_up.nbytes * 3 // 2, exact=False),
        "gelu_tanh_mul": Call(activation.gelu_tanh_mul, (gate_up,), gate_up.nbytes * 3 // 2, exact=False),
        "rotate": Call(rope.rotate, (q, positions, cos, sin, False), 2 * q.nbytes),
        "hadamard": Call(rope.hadamard, (q,), 2 * q.nbytes),
    }
    if rows > 64:  # a step has logits of its streams, not of all its rows
        return found
    logits = torch.randn(rows, size.vocab, generator=draw)
    return found | {
        "softcap": Call(activation.softcap, (logits, 30.0), 2 * logits.nbytes, exact=False),
        "greedy": Call(sample.greedy, (logits,), logits.nbytes),
    } | {
        f"draw, {name}": Call(sample.draw, (logits * 3, torch.tensor([how] * rows, dtype=torch.float64)), logits.nbytes)
        for name, how in DRAWS.items()
    }  # fmt: skip


def caches(size: Sizes, rows: int, codec: str, draw: torch.Generator) -> tuple[Call, Call]:
    """append and seal for `rows` rows: one row of each of as many streams, or whole segments, all of which are sealed in the end."""
    layout, shape = codecs.get(codec).layout, (rows, size.kv_heads, size.head_dim)
    each = SEGMENT if rows % SEGMENT == 0 else 1
    count, pages = rows // each, layout.lead_pages + 1
    items = [(i * each, each, 2 * SEGMENT - each, i, i * pages + pages - 1, i * pages) for i in range(count)]
    k, v = (torch.randn(shape, generator=draw) for _ in range(2))
    tails = torch.randn(count, size.kv_heads, 2, SEGMENT * size.head_dim, generator=draw).half()
    memory = torch.zeros(count * pages, layout.page_bytes(size.kv_heads, size.head_dim), dtype=torch.uint8)
    table = torch.arange(count * pages, dtype=torch.int32)
    where = torch.tensor(items, dtype=torch.int32)
    return (
        Call(lambda k, v, tails, where: (attention.append(k, v, tails, where), tails)[1], (k, v, tails, where), 3 * k.nbytes),
        Call(
            lambda tails, memory, where, table: (attention.seal(tails, memory, where, table, layout), memory)[1],
            (tails, memory, where, table), tails.nbytes + count * memory.shape[1],
        ),
    )  # fmt: skip


def by_row(bench: Bench) -> None:
    """Right first, against the native kernels; then an 8B shape's rows: bytes a second beside the copy."""
    size = REAL if bench.device.type == "cuda" else TINY
    draw = torch.Generator().manual_seed(1)
    for count in size.rows:
        named = calls(size, count, draw)
        for codec in CODECS:
            named["append"], named[f"seal {codec}"] = caches(size, count, codec, draw)
        for name, call in named.items():
            measure(bench, f"{name}, {count} rows", call)


def measure(bench: Bench, what: str, call: Call) -> None:
    def copies(device: torch.device | str) -> list[object]:
        return [one.to(device, copy=True) if isinstance(one, torch.Tensor) else one for one in call.arguments]

    with dispatch.use("auto"):  # on the CPU
        exact = call.run(*copies("cpu"))
    with dispatch.use("triton"):
        arguments = copies(bench.device)
        found = call.run(*arguments)
        for one, other in zip(*(answer if isinstance(answer, tuple) else (answer,) for answer in (found, exact)), strict=True):
            if not (torch.equal(one.cpu(), other) if call.exact else torch.allclose(one.cpu(), other, rtol=1e-5, atol=1e-5)):
                raise ValueError(f"{what}: wrong")
        taken = bench.seconds(lambda: call.run(*arguments))
    bench.add(what, taken * 1e6, "us", call.moved / taken / bench.ceilings["copy"])
