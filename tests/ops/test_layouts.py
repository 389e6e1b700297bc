"""Native kernels of every layout against planes.py: the bytes of whole pages, the answers, their bits, and faults that must show."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from op_bits import ISAS, assert_same_bits, each_isa

from pitstop.ops import attention, dispatch, rope
from pitstop.ops.attention import RAW16, RAW32, Layout, Plane
from pitstop.ops.attention.ref import TOLERANCE, Inputs, make_inputs

HALF, FULL = torch.float16, torch.float32


def channels_and_tokens(keys: int, values: int, lead: int = 0) -> Layout:
    return Layout(Plane(keys, "channel"), Plane(values, "token"), lead)


LAYOUTS = {
    **{f"{bits} bits": channels_and_tokens(bits, bits) for bits in range(2, 9)},
    "k5v4 and a lead": channels_and_tokens(5, 4, lead=8),
    "4 bits and a lead": channels_and_tokens(4, 4, lead=8),
    "3 bits and a lead": channels_and_tokens(3, 3, lead=6),
    "a range a segment": Layout(Plane(8, "segment"), Plane(4, "segment")),
    "the other axis": Layout(Plane(8, "token"), Plane(4, "channel")),
    "closed": Layout(Plane(8, "segment", "closed"), Plane(8, "segment", "closed")),
    "open": Layout(Plane(8, "segment", "open"), Plane(8, "segment", "open")),
    "raw keys": Layout(Plane(16), Plane(4, "token")),
    "raw": RAW16,
    "raw 32": RAW32,
}


def difficult_tails(dtype: torch.dtype, dim: int) -> torch.Tensor:
    """Zeros of both signs, a constant plane, large values, an infinity: where rounding, clamping and empty ranges show."""
    tails = torch.randn(4, 2, 2, 128 * dim, generator=torch.Generator().manual_seed(dim))
    tails[0, :, :, ::7] = 0
    tails[0, :, :, 3::14] = -0.0
    tails[1, 0] = 0.5
    tails[2] *= 3000
    tails[3, 0, 0, 5] = torch.inf
    return tails.to(dtype)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype", [HALF, FULL], ids=["half", "full"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_pages_are_the_reference_s_byte_for_byte(name, dtype, dim):
    layout, tails = LAYOUTS[name], difficult_tails(dtype, dim)
    items = [[0, 0, 0, 0, 0, 0], [0, 0, 128, 1, 1, 0], [0, 0, 256, 2, 2, 0], [0, 0, 384, 3, 3, 0], [0, 0, 0, 0, -1, 0]]
    indices = torch.tensor(items, dtype=torch.int32), torch.tensor([4, 0], dtype=torch.int32)
    pages = torch.full((5, layout.page_bytes(2, dim) + 16), 7, dtype=torch.uint8)
    expected = pages.clone()
    with dispatch.use("ref"):
        attention.seal(tails, expected, *indices, layout)
    dispatch.use("cpu")
    for isa in ISAS:
        dispatch.native.set_isa(isa)
        sealed = pages.clone()
        attention.seal(tails, sealed, *indices, layout)
        different = (sealed != expected).nonzero()
        assert not len(different), f"{isa}: {len(different)} bytes, first at {different[0].tolist()}"


def written(inputs: Inputs, layout: Layout) -> Inputs:
    tails, pages = inputs.tails.clone(), inputs.pages.clone()
    attention.append(inputs.k, inputs.v, tails, inputs.items)
    attention.seal(tails, pages, inputs.items, inputs.table, layout)
    return inputs._replace(tails=tails, pages=pages)


def answer(inputs: Inputs, layout: Layout, backend: str = "cpu", softcap: float = 0.0, window: int = -1) -> torch.Tensor:
    with dispatch.use(backend):
        return attention.paged_attention(
            inputs.q, inputs.tails, inputs.pages, inputs.items, inputs.table, layout, 0.2, softcap=softcap, window=window
        )


def relative_error(actual: torch.Tensor, expected: torch.Tensor, inputs: Inputs) -> float:
    return float((actual - expected).abs().max()) / max(float(v.abs().max()) for v in inputs.values)


BOUND = 2 * TOLERANCE
"""Of planes that are decoded or are numbers: twice the roundings of floating-point planes, on numbers as large."""

ROUNDED = 2e-4
"""Where codes are multiplied as integers, for which queries and weights are rounded to 16 bits: half a step is |query * scale| / 65278, the
largest of a query's, and 64 codes make some 1e-4 of it in scores of a few units."""

AS_NUMBERS = {"the other axis", "closed", "open", "raw", "raw 32"}
"""Layouts without such codes."""

STREAMS = [(300, 1), (120, 20), (250, 3), (0, 5)]


@pytest.mark.parametrize(("softcap", "window"), [(0.0, -1), (5.0, -1), (0.0, 100), (0.0, 129)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_answers(name, softcap, window):
    layout = LAYOUTS[name]
    inputs = make_inputs(1, STREAMS, heads=6, kv_heads=2, dim=64, dtype=FULL if layout is RAW32 else HALF, layout=layout)
    inputs = written(inputs, layout)
    limits = {"softcap": softcap, "window": window}
    actual = answer(inputs, layout, **limits)
    assert relative_error(actual, answer(inputs, layout, "ref", **limits), inputs) <= (BOUND if name in AS_NUMBERS else ROUNDED)
    each_isa(lambda: answer(inputs, layout, **limits))
    for threads in (1, 3):
        dispatch.set_threads(threads)
        assert_same_bits(answer(inputs, layout, **limits), actual)


@pytest.mark.parametrize("window", [-1, 140])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_row_has_the_same_bits_in_any_company(name, window):
    """Alone, where planes are read as they are stored; a few; a whole block, for which they are widened; beside another stream."""
    layout, stream = LAYOUTS[name], [(130, 150)]
    shape = {"heads": 6, "kv_heads": 2, "dim": 64, "dtype": FULL if layout is RAW32 else HALF, "layout": layout}
    expected = answer(written(make_inputs(2, stream, **shape), layout), layout, window=window)
    for chunk in (1, 2, 5, 40):
        assert_same_bits(answer(written(make_inputs(2, stream, **shape, chunk=chunk), layout), layout, window=window), expected)
    company = written(make_inputs(2, [*stream, (256, 1), (5, 130)], **shape), layout)
    assert_same_bits(answer(company, layout, window=window)[: len(expected)], expected)


def test_many_segments_are_merged_alike_whoever_merges_them():
    """More than one merge of sixteen, one row at a time (split among threads) and in a block (merged as they come)."""
    layout = channels_and_tokens(8, 8)
    shape = {"heads": 3, "kv_heads": 1, "dim": 16, "dtype": HALF, "layout": layout}
    expected = answer(written(make_inputs(3, [(4700, 6)], **shape), layout), layout)
    assert_same_bits(answer(written(make_inputs(3, [(4700, 6)], **shape, chunk=1), layout), layout), expected)


@pytest.mark.parametrize("bits", [4, 5, 8])
def test_what_a_page_holds_before_the_window_never_matters(bits):
    """Even when its ranges are no numbers."""
    layout = channels_and_tokens(bits, bits)
    inputs = written(make_inputs(4, [(300, 2)], heads=2, kv_heads=1, dim=64, dtype=HALF, layout=layout), layout)
    expected = answer(inputs, layout, window=100)
    inputs.pages[inputs.table[0]] = 255
    values = inputs.pages[inputs.table[1], layout.keys.bytes(64) :]
    ranges = values[layout.values.code_bytes(64) : layout.values.code_bytes(64) + 512].view(torch.int16)
    ranges[:73] = ranges[128:201] = -1  # tokens 128 to 200 of the stream; its rows are 300 and 301
    assert_same_bits(answer(inputs, layout, window=100), expected)


# ---- faults: how a wrong kernel would read a page


def swap_halves(page: torch.Tensor, layout: Layout) -> None:
    page[: layout.keys.code_bytes(64)] = page[: layout.keys.code_bytes(64)] >> 4 | page[: layout.keys.code_bytes(64)] << 4


def drop_a_zero(page: torch.Tensor, layout: Layout) -> None:
    page[layout.keys.code_bytes(64) + 128 :][:2] = 0


def shift_the_scales(page: torch.Tensor, layout: Layout) -> None:
    at = layout.keys.bytes(64) + layout.values.code_bytes(64)
    page[at : at + 256] = page[at : at + 256].roll(2)


@pytest.mark.parametrize("fault", [swap_halves, drop_a_zero, shift_the_scales])
def test_the_bound_sees(fault):
    layout = channels_and_tokens(4, 4)
    inputs = written(make_inputs(5, [(300, 1)], heads=1, kv_heads=1, dim=64, dtype=HALF, layout=layout), layout)
    expected = answer(inputs, layout, "ref")
    fault(inputs.pages[inputs.table[1]], layout)
    assert relative_error(answer(inputs, layout), expected, inputs) > 10 * ROUNDED


def test_the_bound_sees_a_lead_page_that_is_off_by_one():
    layout = channels_and_tokens(4, 4, lead=8)
    inputs = written(make_inputs(6, [(400, 1)], heads=1, kv_heads=1, dim=64, dtype=HALF, layout=layout), layout)
    expected = answer(inputs, layout, "ref")
    for left, right in pairwise(range(3)):  # lead and first, first and second; the order of the others does not matter
        table = inputs.table.clone()
        table[[left, right]] = table[[right, left]]
        assert not relative_error(answer(inputs._replace(table=table), layout), expected, inputs) <= 10 * ROUNDED


# ---- refusals


def test_short_tables_and_pages_are_refused():
    layout = channels_and_tokens(4, 4, lead=8)
    inputs = written(make_inputs(7, [(300, 1)], heads=1, kv_heads=1, dim=64, dtype=HALF, layout=layout), layout)
    with pytest.raises(ValueError, match="needs 3 page ids from table offset 0; the table has 2"):
        answer(inputs._replace(table=inputs.table[:2].clone()), layout)
    with pytest.raises(ValueError, match="is smaller than a segment"):
        answer(inputs._replace(pages=inputs.pages[:, :1024].contiguous()), layout)
    first = torch.tensor([[0, 128, 0, 0, 0, 2]], dtype=torch.int32)
    with dispatch.use("cpu"), pytest.raises(ValueError, match="no lead page at table offset 2"):
        attention.seal(inputs.tails, inputs.pages, first, inputs.table[:2].clone(), layout)


@pytest.mark.parametrize("dim", [1, 2, 8, 16, 32, 64, 128, 256])
def test_hadamard_has_the_reference_s_bits(dim):
    x = torch.randn(7, 5, 3 * dim, generator=torch.Generator().manual_seed(dim))
    for given in (x[..., :dim].contiguous(), x.flatten(1)[:, 3 : 3 + 2 * dim].unflatten(1, (2, dim))):
        with dispatch.use("ref"):
            expected = rope.hadamard(given)
        with dispatch.use("cpu"):
            for isa in ISAS:
                dispatch.native.set_isa(isa)
                assert_same_bits(rope.hadamard(given), expected)
