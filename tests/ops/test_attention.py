"""Paged attention: native and reference against a brute-force softmax, masks over every edge, memory that must not matter, and bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_bits import BACKENDS, ISAS, assert_same_bits, each_isa

from pitstop.ops import attention, dispatch
from pitstop.ops.attention.ref import TOLERANCE, Inputs, make_inputs, masked_attention, seen_by

HALF, FULL = torch.float16, torch.float32
NO_CAP, ALL = 0.0, -1


def raw(tails: torch.Tensor) -> attention.Layout:
    return attention.RAW16 if tails.dtype is HALF else attention.RAW32


def run(inputs: Inputs, scale: float = 0.2, softcap: float = NO_CAP, window: int = ALL, *temperature: int) -> torch.Tensor:
    tails, pages = inputs.tails.clone(), inputs.pages.clone()
    attention.append(inputs.k, inputs.v, tails, inputs.items)
    attention.seal(tails, pages, inputs.items, inputs.table, raw(tails))
    return attention.paged_attention(inputs.q, tails, pages, inputs.items, inputs.table, raw(tails), scale, softcap, window, *temperature)


def brute_force(
    inputs: Inputs, scale: float = 0.2, softcap: float = NO_CAP, window: int = ALL, length: int = 0, cap_first: bool = False
) -> torch.Tensor:
    """One row and head at a time, by the definition, in fp64."""
    q = inputs.q.double().numpy()
    out = np.zeros_like(q)
    group = inputs.q.shape[1] // inputs.k.shape[1]
    row = 0
    for keys, values, positions in zip(inputs.keys, inputs.values, inputs.positions, strict=True):
        k, v = keys.double().numpy(), values.double().numpy()
        for position in positions:
            seen = np.array([j for j in range(position + 1) if window < 0 or j > position - window], dtype=int)
            for head in range(inputs.q.shape[1] if len(seen) else 0):
                scores = k[head // group, seen] @ q[row, head] * scale
                heat = np.log(position) / np.log(length) if length and position > length else 1
                scores = scores if cap_first else scores * heat
                scores = softcap * np.tanh(scores / softcap) if softcap else scores
                scores = scores * heat if cap_first else scores
                weights = np.exp(scores - scores.max())
                out[row, head] = weights @ v[head // group, seen] / weights.sum()
            row += 1
    return torch.from_numpy(out)


def assert_close(actual: torch.Tensor, exact: torch.Tensor, inputs: Inputs) -> None:
    error = (actual - exact).abs().max()
    assert error <= TOLERANCE * max(float(v.abs().max()) for v in inputs.values), float(error)


CASES = {
    "one token": {"streams": [(0, 1)], "heads": 1, "kv_heads": 1, "dim": 16},
    "decode": {"streams": [(5, 1), (127, 1), (128, 1), (300, 1)], "heads": 9, "kv_heads": 3, "dim": 64},
    "prefill over segments": {"streams": [(0, 300)], "heads": 4, "kv_heads": 2, "dim": 32},
    "chunks after a past": {"streams": [(100, 60), (0, 17), (250, 140)], "heads": 6, "kv_heads": 2, "dim": 48},
    "one kv head for many": {"streams": [(130, 20)], "heads": 14, "kv_heads": 1, "dim": 16},
    "as many kv heads": {"streams": [(140, 30), (3, 2)], "heads": 3, "kv_heads": 3, "dim": 80},
    "wide head": {"streams": [(129, 3)], "heads": 2, "kv_heads": 1, "dim": 256},
}


@pytest.mark.parametrize("dtype", [HALF, FULL], ids=["half", "full"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_brute_force(backend, case, dtype):
    inputs = make_inputs(1, **CASES[case], dtype=dtype)
    exact = brute_force(inputs)
    with dispatch.use(backend):
        assert_close(run(inputs), exact, inputs)


@pytest.mark.parametrize("window", [0, 1, 2, 127, 128, 129, 200, 1000])
@pytest.mark.parametrize("backend", BACKENDS)
def test_window(backend, window):
    inputs = make_inputs(2, [(126, 5), (300, 1), (0, 20), (380, 10)], heads=4, kv_heads=2, dim=16, dtype=HALF)
    with dispatch.use(backend):
        assert_close(run(inputs, window=window), brute_force(inputs, window=window), inputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_softcap(backend):
    inputs = make_inputs(3, [(200, 3), (0, 40)], heads=4, kv_heads=2, dim=32, dtype=HALF)
    with dispatch.use(backend):
        capped = run(inputs, scale=2.0, softcap=5.0)
    assert_close(capped, brute_force(inputs, scale=2.0, softcap=5.0), inputs)
    assert (capped - run(inputs, scale=2.0)).abs().max() > 0.1


@pytest.mark.parametrize("cap_first", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_temperature(backend, cap_first):
    """Of rows in one item before and after the length, in decode and in prefill, split among threads or not."""
    inputs = make_inputs(4, [(200, 3), (0, 40), (10, 20), (500, 1)], heads=4, kv_heads=2, dim=32, dtype=HALF)
    with dispatch.use(backend):
        found = {(length, softcap): run(inputs, 0.1, softcap, ALL, length, cap_first) for length in (0, 8, 30) for softcap in (NO_CAP, 1.5)}
        assert_same_bits(found[0, 1.5], run(inputs, 0.1, 1.5))
    for (length, softcap), out in found.items():
        assert_close(out, brute_force(inputs, 0.1, softcap, ALL, length, cap_first), inputs)
    early, late = [3, 4, 5, 6, 7, 8], [0, 42, 63]  # positions 0 to 5; 200, 39 and 500
    assert_same_bits(found[8, 1.5][early], found[0, 1.5][early])
    assert ((found[8, 1.5] - found[0, 1.5])[late].abs().amax(dim=(1, 2)) > 0.01).all()


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, max_examples=60)
@given(
    streams=st.lists(st.tuples(st.integers(0, 270), st.integers(1, 12)), min_size=1, max_size=3),
    window=st.one_of(st.integers(-1, 20), st.integers(120, 290)),
    chunk=st.sampled_from([1, 5, 128]),
    seed=st.integers(0, 100),
)
def test_masks_by_property(backend, streams, window, chunk, seed):
    """Causality, window and length, together, against the definition."""
    inputs = make_inputs(seed, streams, heads=2, kv_heads=1, dim=16, dtype=HALF, chunk=chunk)
    with dispatch.use(backend):
        assert_close(run(inputs, window=window), brute_force(inputs, window=window), inputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_that_sees_nothing_gives_zeros_beside_any_garbage(isa, backend):
    dispatch.native.set_isa(isa)
    dispatch.use(backend)
    inputs = make_inputs(4, [(130, 9), (0, 1), (400, 1)], heads=4, kv_heads=2, dim=32, dtype=HALF)
    poisoned = inputs._replace(tails=torch.full_like(inputs.tails, torch.nan), pages=torch.full_like(inputs.pages, 0xFF))
    out = attention.paged_attention(
        poisoned.q, poisoned.tails, poisoned.pages, inputs.items, inputs.table, raw(poisoned.tails), 1.0, NO_CAP, 0
    )
    assert_same_bits(out, torch.zeros_like(out))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_row_does_not_see_never_matters(backend):
    """Other bits in unwritten memory, in segments before the window and in later tokens of the same block: the same answer, to the bit."""
    dispatch.use(backend)
    inputs = make_inputs(5, [(250, 40)], heads=6, kv_heads=2, dim=32, dtype=HALF)
    for window in (ALL, 7):
        expected = run(inputs, window=window)
        zeroed = inputs._replace(tails=torch.nan_to_num(inputs.tails), pages=inputs.pages.clone())
        if window > 0:
            zeroed.pages[inputs.table[0]] = 0x7C  # large fp16 values; the first page lies before every row's window
        assert_same_bits(run(zeroed, window=window), expected)
        for first in range(7, 40, 5):  # rows of one block, whatever its size, must not see later ones
            late = inputs._replace(k=inputs.k.clone(), v=inputs.v.clone())
            late.k[first:], late.v[first:] = torch.inf, torch.nan
            assert_same_bits(run(late, window=window)[:first], expected[:first])


def test_masked_attention_handles_any_mask():
    """The dense helper, over every mask of three keys."""
    q, k, v = torch.randn(1, 2, 4), torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    for bits in range(8):
        seen = [j for j in range(3) if bits >> j & 1]
        mask = torch.tensor([[j in seen for j in range(3)]])
        expected = torch.zeros(1, 2, 4)
        if seen:
            expected = (torch.softmax(q[0] @ k[0, seen].T * 0.5, 1) @ v[0, seen])[None]
        torch.testing.assert_close(masked_attention(q, k, v, mask, 0.5), expected)


def test_seen_by_is_the_definition():
    positions, keys = torch.arange(6), torch.arange(6)
    for window in (-1, 0, 1, 3):
        expected = [[j <= p and (window < 0 or j > p - window) for j in range(6)] for p in range(6)]
        assert seen_by(positions, keys, window).tolist() == expected


# ---- bits


STREAM = [(0, 280)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [ALL, 40])
def test_bits_do_not_depend_on_chunks_company_place_or_threads(backend, window):
    dispatch.use(backend)
    shape = {"heads": 6, "kv_heads": 2, "dim": 32, "dtype": HALF}
    dispatch.set_threads(1)
    expected = run(make_inputs(6, STREAM, **shape), window=window)
    for threads in (1, 2):
        dispatch.set_threads(threads)
        for chunk in (1, 16, 64, 128):
            assert_same_bits(run(make_inputs(6, STREAM, **shape, chunk=chunk), window=window), expected)
        company = make_inputs(6, [*STREAM, (200, 1), (5, 130)], **shape)
        assert_same_bits(run(company, window=window)[: len(expected)], expected)
        moved = company._replace(q=company.q.roll(50, 0), k=company.k.roll(50, 0), v=company.v.roll(50, 0), items=company.items.clone())
        moved.items[:, 0] += 50
        kept = moved.items[:, 0] + moved.items[:, 1] <= len(company.q)
        out = run(moved._replace(items=moved.items[kept]), window=window)
        assert_same_bits(out[50 : 50 + len(expected)], expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_decode_steps_equal_prefill_to_the_bit(backend):
    """Token by token in separate calls, tails and pages carried along, against one call."""
    dispatch.use(backend)
    inputs = make_inputs(7, [(0, 140)], heads=3, kv_heads=1, dim=16, dtype=HALF)
    expected = run(inputs)
    tails, pages = inputs.tails.clone(), inputs.pages.clone()
    rows = []
    for position in range(140):
        segment = position // 128
        seal = segment if position % 128 == 127 else -1
        items = torch.tensor([[0, 1, position, segment, seal, 0]], dtype=torch.int32)
        one = slice(position, position + 1)
        attention.append(inputs.k[one], inputs.v[one], tails, items)
        attention.seal(tails, pages, items, inputs.table, raw(tails))
        rows.append(attention.paged_attention(inputs.q[one], tails, pages, items, inputs.table, raw(tails), 0.2))
    assert_same_bits(torch.cat(rows), expected)


def test_a_long_stream_shared_among_threads_equals_one_that_is_not():
    inputs = make_inputs(8, [(2000, 1), (1500, 4), (1000, 5)], heads=9, kv_heads=3, dim=64, dtype=HALF)
    results = []
    for threads in (1, 2, 3):
        dispatch.set_threads(threads)
        results.append(run(inputs))
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])
    alone = make_inputs(8, [(2000, 1)], heads=9, kv_heads=3, dim=64, dtype=HALF)
    assert_same_bits(run(alone), results[0][:1])


@pytest.mark.parametrize("dtype", [HALF, FULL], ids=["half", "full"])
def test_instruction_sets_agree(dtype):
    inputs = make_inputs(9, [(130, 40), (300, 1)], heads=6, kv_heads=2, dim=48, dtype=dtype)
    each_isa(lambda: run(inputs, softcap=20.0, window=150))


# ---- memory layout and refusals


@pytest.mark.parametrize("dtype", [HALF, FULL], ids=["half", "full"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_append_and_seal_keep_the_documented_layout(backend, dtype):
    dispatch.use(backend)
    k, v = torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    tails = torch.full((3, 2, 2, 128 * 16), 7.0, dtype=dtype)
    items = torch.tensor([[2, 3, 128 + 125, 1, 0, 0], [0, 2, 4, 2, -1, 0]], dtype=torch.int32)
    attention.append(k, v, tails, items)
    keys, values = tails[:, :, 0].view(3, 2, 16, 128), tails[:, :, 1].view(3, 2, 128, 16)
    assert torch.equal(keys[1, :, :, 125:], k[2:].permute(1, 2, 0).to(dtype))
    assert torch.equal(values[1, :, 125:], v[2:].transpose(0, 1).to(dtype))
    assert torch.equal(values[2, :, 4:6], v[:2].transpose(0, 1).to(dtype))
    assert int((tails != 7).sum()) == 2 * 5 * 2 * 16
    pages = torch.zeros(2, tails[0].numel() * tails.itemsize, dtype=torch.uint8)
    attention.seal(tails, pages, items, torch.zeros(1, dtype=torch.int32), raw(tails))
    assert torch.equal(pages[0].view(dtype), tails[1].flatten())
    assert not pages[1].any()


BAD_ITEMS = {
    "rows": [2, 4, 0, 0, -1, 0],
    "do not lie in one": [0, 2, 127, 0, -1, 0],
    "tail 3": [0, 1, 0, 3, -1, 0],
    "page ids": [0, 1, 256, 0, -1, 1],
    "names page": [0, 1, 128, 0, -1, 1],
}


@pytest.mark.parametrize("message", BAD_ITEMS)
def test_items_out_of_range_are_refused(message):
    items = torch.tensor([BAD_ITEMS[message]], dtype=torch.int32)
    tails, pages = torch.zeros(3, 1, 2, 128 * 16), torch.zeros(2, 128 * 16 * 8, dtype=torch.uint8)
    table = torch.tensor([0, 9], dtype=torch.int32)
    with dispatch.use("cpu"), pytest.raises(ValueError, match=message):
        attention.paged_attention(torch.zeros(5, 1, 16), tails, pages, items, table, raw(tails), 1.0)


def test_rows_that_no_item_names_are_zero():
    inputs = make_inputs(10, [(3, 4)], heads=1, kv_heads=1, dim=16, dtype=FULL)
    wide = inputs._replace(q=torch.cat([inputs.q, torch.ones(2, 1, 16)]))
    assert_same_bits(run(wide)[4:], torch.zeros(2, 1, 16))


def test_the_tolerance_sees_a_mask_that_is_off_by_one():
    """The smallest effect of one token too many, at the lengths used above, is far outside the tolerance."""
    inputs = make_inputs(1, [(300, 1)], heads=4, kv_heads=2, dim=16, dtype=HALF)
    error = (brute_force(inputs, window=290) - brute_force(inputs, window=291)).abs().max()
    assert error > 10 * TOLERANCE * float(inputs.values[0].abs().max())
