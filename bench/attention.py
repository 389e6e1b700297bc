"""How near attention comes to what the machine allows: one decode step over a paged cache of the default model's shape, by codec.

First the ceiling: read bandwidth (a sum over memory far larger than any cache). Then the attention of all layers, one after the other as a
recorded step calls it: milliseconds, GB/s of keys and values, and that over the ceiling. "near" is the same work on one page that stays in
the nearest caches: what computing alone takes. Weights are not read meanwhile, so small caches stay near, too, as they do not in a server.

Run it on an idle machine: `python bench/attention.py [--contexts 512,7000] [--streams 1] [--codecs raw16,int8] [--threads N] [--isa NAME]`.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json

import torch
from ceiling import best, read_bandwidth

from pitstop import codecs
from pitstop.config import usable_cores
from pitstop.kv.capacity import stream_pages
from pitstop.kv.store import KVStore
from pitstop.ops import dispatch
from pitstop.ops.attention import paged_attention
from pitstop.ops.graph import Arena, Graph
from pitstop.types import SEGMENT, KVShape

SHAPE, HEADS = KVShape(layers=30, kv_heads=3, head_dim=64), 9
"""SmolLM2-135M's."""


def recorded(store: KVStore, layers: list[int], context: int, streams: int, table: torch.Tensor) -> Graph:
    """The attention of these layers, of one new token to each stream behind `context` tokens, `table` int32 [streams, pages]."""
    items = torch.tensor([[i, 1, context - 1, i, -1, i * table.shape[1]] for i in range(streams)], dtype=torch.int32)
    flat, layout, scale = table.flatten(), store.codec.layout, SHAPE.head_dim**-0.5

    def attend(q: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            out = paged_attention(q, store.tails[layer], store.pages[layer], items, flat, layout, scale, 0.0, -1, 0, False)
        return out

    graph = Graph(attend, torch.randn(streams, HEADS, SHAPE.head_dim), Arena())
    graph.reads = store, items, flat  # it knows only their addresses
    return graph


def measure(name: str, context: int, streams: int, read: float, seconds: float) -> dict[str, float | str | int]:
    codec = codecs.get(name)
    pages = stream_pages(context - 1, codec.lead_pages)
    store = KVStore(codec, SHAPE, streams * pages, streams, "cpu")
    store.pages.random_(0, 64)  # finite, whatever they are read as
    store.tails.normal_()
    ids = torch.arange(streams * pages, dtype=torch.int32).view(streams, pages)
    open_values = ((context - 1) % SEGMENT + 1) * 2 * SHAPE.kv_heads * SHAPE.head_dim
    size = streams * SHAPE.layers * (pages * codec.page_bytes(SHAPE) + open_values * codec.tail_dtype.itemsize)
    far = best(recorded(store, list(range(SHAPE.layers)), context, streams, ids).replay, seconds)
    near = best(recorded(store, [0] * SHAPE.layers, context, streams, torch.zeros_like(ids)).replay, seconds)
    return {
        "codec": name,
        "context": context,
        "streams": streams,
        "ms": 1e3 * far,
        "near_ms": 1e3 * near,
        "gb_s": size / far / 1e9,
        "ratio": size / far / 1e9 / read,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", default="512,2048,7000")
    parser.add_argument("--streams", default="1")
    parser.add_argument("--codecs", default="raw16,int8,k5v4,int4")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    parser.add_argument("--isa", default="", help="an instruction set of this machine; the best if none is given")
    options = parser.parse_args()
    dispatch.use("cpu")
    dispatch.set_threads(options.threads)
    if options.isa:
        dispatch.native.set_isa(options.isa)
    read = read_bandwidth(options.seconds)
    print(f"{options.threads} threads, {dispatch.native.isa()}; ceiling: read {read:.1f} GB/s")
    print(f"{'codec':<10}{'context':>8}{'streams':>8}{'ms':>8}{'near':>8}{'GB/s':>8}{'ratio':>7}")
    rows = []
    for context in map(int, options.contexts.split(",")):
        for streams in map(int, options.streams.split(",")):
            for name in options.codecs.split(","):
                row = measure(name, context, streams, read, options.seconds)
                times = f"{row['ms']:>8.2f}{row['near_ms']:>8.2f}{row['gb_s']:>8.1f}{row['ratio']:>7.2f}"
                print(f"{name:<10}{context:>8}{streams:>8}{times}", flush=True)
                rows.append({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    print(json.dumps({"threads": options.threads, "isa": dispatch.native.isa(), "read_gb_s": round(read, 2), "rows": rows}))


if __name__ == "__main__":
    main()
