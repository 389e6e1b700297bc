"""What the kernels answer that work row by row: bits and bytes that differ, or errors as shares of what is tolerated. test_row_kernels.py
judges.

A program for interpreter.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from interpreter import main
from op_bits import frequencies

from pitstop.engine import sampler
from pitstop.ops import activation, attention, dispatch, norm, rope, sample
from pitstop.ops.activation import ref as activation_ref
from pitstop.ops.attention import planes
from pitstop.ops.attention.layout import RAW16, Layout, Plane
from pitstop.ops.attention.ref import Inputs, make_inputs
from pitstop.ops.norm import ref as norm_ref
from pitstop.ops.rope import ref as rope_ref
from pitstop.ops.sample import ref as sample_ref
from pitstop.ops.sample import triton as sample_triton
from pitstop.ops.sample.draws import Draw

DEVICE = "cuda" if torch.cuda.is_available() and __name__ != "__main__" else "cpu"
EPS = 1e-2
LAYOUTS = {
    "raw": RAW16,
    "8 bits": Layout(Plane(8, "channel"), Plane(8, "token")),
    "4 bits and a lead": Layout(Plane(4, "channel"), Plane(4, "token"), lead=8),
    "8 and 4 bits, the other axes": Layout(Plane(8, "token"), Plane(4, "channel")),
    "a range a segment": Layout(Plane(8, "segment"), Plane(4, "segment")),
}
PADDING = torch.tensor([[0, 0, 0, 0, -1, 0]], dtype=torch.int32)


def run(op: Callable[..., object], *arguments: object) -> torch.Tensor:
    """The op by Triton, on the CPU in the end. Of several tensors the last."""
    moved = [argument.to(DEVICE) if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    with dispatch.use("triton"):
        found = op(*moved)
    return (found[-1] if isinstance(found, tuple) else found).cpu()


def expected(op: Callable[..., object], *arguments: object, backend: str = "ref") -> torch.Tensor:
    with dispatch.use(backend):
        found = op(*arguments)
    return found[-1] if isinstance(found, tuple) else found


def different(found: torch.Tensor, other: torch.Tensor) -> float:
    """Bits of NaN are all the same."""
    assert found.shape == other.shape
    assert found.dtype is other.dtype
    return float(((found != other) & ~((found != found) & (other != other))).sum())


def norms() -> dict[str, float]:
    """Errors, as shares of what is tolerated."""
    found = {}
    for width in (1, 17, 64, 576, 2100):
        x, weight = norm_ref.make_inputs(width, 5, width)
        x[3], x[4] = 0, x[4] / 50
        y = x.flip(0).contiguous()
        for name, total in (("rms_norm", x), ("add_rms_norm", x + y)):
            exact = total.double() / (total.double().square().mean(dim=1, keepdim=True) + EPS).sqrt() * weight
            answer = run(norm.rms_norm, x, weight, EPS) if name == "rms_norm" else run(norm.add_rms_norm, x, y, weight, EPS)
            found[f"{name} {width}"] = float(((answer - exact).abs() / (norm_ref.TOLERANCE * exact.abs() + 1e-37)).max())
        bias, x = torch.linspace(-1, 1, width), torch.randn(5, width, generator=torch.Generator().manual_seed(width)) + 3
        centred = x.double() - x.double().mean(1, keepdim=True)
        scaled = centred / (centred.square().mean(1, keepdim=True) + EPS).sqrt()
        bound = norm_ref.LAYER_TOLERANCE * width**0.5 * (1 + scaled.abs().amax(1, keepdim=True)) * weight.abs() + 1e-7 * bias.abs()
        answer = run(norm.layer_norm, x, weight, bias, EPS).double()
        found[f"layer_norm {width}"] = float(((answer - scaled * weight.double() - bias.double()).abs() / bound).max())
    x, weight = norm_ref.make_inputs(3, 24, 20)
    heads = run(norm.rms_norm, x.view(4, 6, 20), weight, EPS).flatten(0, 1)
    found["heads, bits"] = different(heads, run(norm.rms_norm, x, weight, EPS))
    return found


def activations() -> dict[str, float]:
    """Values that differ from the native kernels'; GELU with erf: errors, as shares of what is tolerated."""
    found = {}
    for features in (1, 33, 1100):
        gate_up = activation_ref.make_inputs(features, 5, features)
        gate_up[0, 0], gate_up[1, 0], gate_up[2, 0] = torch.inf, -1e20, torch.nan
        for op in (activation.silu_mul, activation.gelu_tanh_mul, activation.gelu_tanh):
            found[f"{op.__name__} {features}"] = different(run(op, gate_up), expected(op, gate_up, backend="cpu"))
        found[f"softcap {features}"] = different(
            run(activation.softcap, gate_up, 30.0), expected(activation.softcap, gate_up, 30.0, backend="cpu")
        )
        for op in (activation.gelu_erf_mul, activation.gelu_erf):
            exact, answer = expected(op, gate_up), run(op, gate_up)
            bound = activation_ref.GELU_ERF_TOLERANCE * exact.abs() + 1e-37
            same = (answer == exact) | (answer.isnan() & exact.isnan())
            found[f"{op.__name__} {features}"] = float(((answer - exact).abs() / bound).where(~same, 0).max())
    return found


def rotations() -> dict[str, float]:
    """Values that differ from the reference's."""
    found = {}
    for dim in (2, 64, 80):
        cos, sin = rope.tables(300, frequencies(dim, 10000.0))
        x, positions = rope_ref.make_inputs(dim, 5, 3, dim, 300)
        for interleaved in (False, True):
            arguments = (x, positions, cos, sin, interleaved)
            found[f"{dim}, {interleaved}"] = different(run(rope.rotate, *arguments), expected(rope.rotate, *arguments))
    outside = run(rope.rotate, x, torch.tensor([-1, 300, 0, 0, 0], dtype=torch.int32), cos, sin, False)
    found["outside the tables"] = float((~outside[:2].isnan()).sum() + outside[2:].isnan().sum())
    for dim in (16, 128):
        x, _ = rope_ref.make_inputs(dim, 5, 3, dim, 300)
        found[f"hadamard {dim}"] = different(run(rope.hadamard, x), expected(rope.hadamard, x))
    return found


def chosen(vocab: int, columns: int) -> dict[str, float]:
    """Ids that are not the host's, where a tile has `columns`."""
    logits, usual = sample_ref.make_inputs(vocab, 6, vocab), sample_triton.COLUMNS
    logits[4] = logits[4].flip(0)
    logits[5, vocab - 1] = 9
    sample_triton.COLUMNS = columns
    found = {f"greedy of {vocab}": different(run(sample.greedy, logits), torch.from_numpy(logits.numpy().argmax(1)))}
    sample_triton.COLUMNS = usual
    return found


def choices() -> dict[str, float]:
    return chosen(1, 2048) | chosen(3000, 2048) | chosen(500, 32) | chosen(40, 32)


def drawn(vocab: int, columns: int, groups: int, rows: int) -> dict[str, float]:
    """Ids that are not the host's, of rows of all kinds and every kind of draw, where a tile has `columns`, in so many groups."""
    usual = sample_triton.DRAWN_COLUMNS, sample_triton.GROUPS
    sample_triton.DRAWN_COLUMNS, sample_triton.GROUPS = columns, groups
    logits = sample_ref.make_inputs(vocab, 6, vocab).repeat(rows, 1)
    logits[5::6] = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    draws = sample_ref.make_draws(vocab, len(logits))
    hosts = [Draw(t, int(top_k), top_p, int(least), u) for t, top_k, top_p, least, u in draws.tolist()]
    exact = torch.tensor([sampler.choose(row.numpy(), one) for row, one in zip(logits, hosts, strict=True)])
    found = {f"draw of {vocab}": different(run(sample.draw, logits, draws), exact)}
    sample_triton.DRAWN_COLUMNS, sample_triton.GROUPS = usual
    return found


def draws() -> dict[str, float]:
    return drawn(1, 64, 8, 1) | drawn(300, 128, 8, 2)


def more_draws() -> dict[str, float]:
    return drawn(50, 16, 4, 10) | drawn(600, 256, 16, 10) | drawn(4099, 1024, 64, 4) | drawn(49152, 4096, 512, 2)


def written(inputs: Inputs, layout: Layout, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Tails (as integers) and pages after append and seal, with padding among the items."""
    items = torch.cat([PADDING, inputs.items, PADDING, PADDING])
    k, v, tails, pages, items, table = (
        tensor.to(device, copy=True) for tensor in (inputs.k, inputs.v, inputs.tails, inputs.pages, items, inputs.table)
    )
    attention.append(k, v, tails, items)
    attention.seal(tails, pages, items, table, layout)
    return tails.cpu().view(torch.int16), pages.cpu()


def compared(inputs: Inputs, layout: Layout) -> float:
    """Numbers in tails and bytes in pages that differ from the reference's."""
    with dispatch.use("ref"):
        tails, pages = written(inputs, layout, "cpu")
    with dispatch.use("triton"):
        other_tails, other_pages = written(inputs, layout, DEVICE)
    return different(other_tails, tails) + different(other_pages, pages)


def caches() -> dict[str, float]:
    found = {}
    for name in ("4 bits and a lead", "a range a segment"):
        layout = LAYOUTS[name]
        inputs = make_inputs(1, [(126, 4), (250, 6), (0, 3)], heads=2, kv_heads=2, dim=64, dtype=torch.float16, layout=layout)
        inputs.k[3, 0, :2] = torch.tensor([1e6, -7e4])  # beyond fp16
        found[name] = compared(inputs, layout)
    return found


def other_caches() -> dict[str, float]:
    found = {}
    for dim in (64, 80, 96, 128, 256):
        for name, layout in LAYOUTS.items():
            if dim != 80 or layout.values.bits != 4:
                inputs = make_inputs(2, [(100, 300)], heads=2, kv_heads=2, dim=dim, dtype=torch.float16, layout=layout)
                found[f"{name}, {dim}"] = compared(inputs, layout)
    return found


def edges() -> dict[str, float]:
    """Bytes of a tail whose values lie between two codes, are all the same, of both zeros, infinite; and what becomes of NaN."""
    found = {}
    for name in ("8 bits", "4 bits and a lead", "a range a segment"):
        layout = LAYOUTS[name]
        tails = torch.randn(1, 1, 2, 128 * 64, generator=torch.Generator().manual_seed(1)).half()
        keys, values = tails[0, 0, 0].view(64, 128), tails[0, 0, 1].view(128, 64)
        keys[:] = torch.arange(128) + 0.5
        keys[:, 0], keys[:, 127] = 0, 255
        keys[1], keys[2], keys[3] = -0.0, 7.5, 6e-8
        keys[4, 5] = torch.inf
        values[:] = torch.arange(64) + 0.5
        values[:, 0], values[:, 63] = 0, 255
        values[9, 1] = -torch.inf
        for broken in (False, True):
            if broken:
                keys[5, 6], values[7, 8] = torch.nan, torch.nan
            items, table = torch.tensor([[0, 0, 0, 0, 1, 0]], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
            pages = [torch.full((2, layout.page_bytes(1, 64)), 255, dtype=torch.uint8) for _ in range(2)]
            with dispatch.use("ref"):
                attention.seal(tails, pages[0], items, table, layout)
            on_device = pages[1].to(DEVICE)
            with dispatch.use("triton"):
                attention.seal(tails.to(DEVICE), on_device, items.to(DEVICE), table.to(DEVICE), layout)
            pages[1] = on_device.cpu()
            if broken:
                decoded = [planes.unseal(layout, page[0] if layout.lead else None, page[1], 1, 64) for page in pages]
                found[f"{name}, NaN"] = sum(different(*pair) for pair in zip(*decoded, strict=True))
            else:
                found[name] = different(*pages)
    return found


def rotated(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return rope.rotate(x.unflatten(1, (5, 20)), positions[: len(x)], cos, sin, True)


def alone() -> dict[str, float]:
    """Values that differ when rows are alone, or in a slice that lies otherwise in memory."""
    found = {}
    positions, (cos, sin) = torch.full((9,), 7, dtype=torch.int32), rope.tables(500, frequencies(20, 10000.0))
    for width in (100, 33, 1030):
        x, weight = norm_ref.make_inputs(width, 9, width)
        calls = {"rms_norm": (norm.rms_norm, weight, EPS), "layer_norm": (norm.layer_norm, weight, weight, EPS)}
        calls |= {"gelu_erf": (activation.gelu_erf,), "softcap": (activation.softcap, 30.0)}
        if width == 100:
            calls |= {"silu_mul": (activation.silu_mul,), "rotate": (rotated, positions, cos, sin)}
        wide = torch.cat([torch.full((9, 1), torch.nan), x, torch.full((9, 2), torch.nan)], dim=1)
        for name, (op, *more) in calls.items():
            together = run(op, x, *more)
            one = torch.cat([run(op, x[row : row + 1], *more) for row in (0, 4, 8)])
            found[f"{name} {width}, alone"] = different(one, together[[0, 4, 8]])
            found[f"{name} {width}, a slice"] = different(run(op, wide.to(DEVICE)[:, 1 : width + 1], *more), together)
    return found


CHECKS = {
    check.__name__: check for check in (norms, activations, rotations, choices, draws, more_draws, caches, other_caches, edges, alone)
}


if __name__ == "__main__":
    main(
        CHECKS,
        {
            "norm.triton_kernels": norm,
            "activation.triton_kernels": activation,
            "rope.triton_kernels": rope,
            "sample.triton_kernels": sample,
            "draw_kernels": sample,
            "cache_kernels": attention,
        },
    )
