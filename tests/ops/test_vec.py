"""The vector primitives below the ops: exp, fp16 rounding, and the pool of threads."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from op_bits import ISAS, assert_same_bits

from pitstop.ops import attention, dispatch, linear


def native_exp(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    dispatch.native.exp(x.data_ptr(), out.data_ptr(), x.numel())
    return out


@pytest.mark.parametrize("isa", ISAS)
def test_exp_errs_by_at_most_1_1_ulp(isa):
    """Over every 509th fp32 bit pattern, infinities and subnormal results included."""
    dispatch.native.set_isa(isa)
    patterns = torch.arange(-(2**31), 2**31, 509 if isa != "portable" else 50021, dtype=torch.int64).to(torch.int32)
    x = patterns.view(torch.float32)
    x = torch.cat([x[~x.isnan()], torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 88.722839, 88.72284, -103.97208, -104.0, -87.33655])])
    exact = x.double().exp()
    y = native_exp(x)
    overflows = exact >= 2.0**128
    assert torch.equal(y[overflows], torch.full_like(y[overflows], torch.inf))
    ulp = 2.0 ** exact.clamp(min=2.0**-126).log2().floor() * 2**-23
    error = ((y.double() - exact).abs() / ulp)[~overflows]
    assert error.max() < 1.1, float(error.max())
    assert native_exp(torch.tensor([torch.nan])).isnan().all()


def test_instruction_sets_agree_on_exp():
    x = torch.arange(-(2**31), 2**31, 300007, dtype=torch.int64).to(torch.int32).view(torch.float32)
    x = x[~x.isnan()]
    results = []
    for isa in ISAS:
        dispatch.native.set_isa(isa)
        results.append(native_exp(x))
    for result in results:
        assert_same_bits(result, results[0])


def one_row_items(count: int) -> torch.Tensor:
    """Row i is the first token of a stream of its own, in tail i."""
    rows = torch.arange(count, dtype=torch.int32)
    one, zero = torch.ones_like(rows), torch.zeros_like(rows)
    return torch.stack([rows, one, zero, rows, -one, zero], dim=1)


def tricky_floats() -> torch.Tensor:
    """Every half, the midpoint above each, its two fp32 neighbours, and the ends; as [n, 1, 16]."""
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    halves = halves[halves.isfinite()].float()
    following = torch.nextafter(halves.half(), torch.tensor(torch.inf).half()).float()
    middle = ((halves.double() + following.double()) / 2).float()
    up, down = (torch.nextafter(middle, torch.tensor(end)) for end in (torch.inf, -torch.inf))
    ends = torch.tensor([65519.99, 65520.0, 1e6, torch.inf, -torch.inf, 1e-30, -1e-30, 0.0])
    floats = torch.cat([halves, middle, up, down, ends])
    floats = floats[~floats.isnan()]
    return torch.cat([floats, torch.zeros(-len(floats) % 16)]).view(-1, 1, 16)


@pytest.mark.parametrize("isa", ISAS)
def test_append_rounds_as_torch_does(isa):
    dispatch.native.set_isa(isa)
    x = tricky_floats()
    tails = torch.zeros(len(x), 1, 2, 128 * 16, dtype=torch.float16)
    attention.append(x, x.flip(0), tails, one_row_items(len(x)))
    assert torch.equal(tails[:, 0, 0].view(-1, 16, 128)[:, :, 0].view(torch.int16), x[:, 0].half().view(torch.int16))
    assert torch.equal(tails[:, 0, 1].view(-1, 128, 16)[:, 0].view(torch.int16), x.flip(0)[:, 0].half().view(torch.int16))


@pytest.mark.parametrize("isa", ISAS)
def test_every_half_is_read_exactly(isa):
    """A row that sees one token gives that token's value, unchanged."""
    dispatch.native.set_isa(isa)
    values = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    values = values[values.isfinite()].view(-1, 1, 16)[:, [0]]
    tails = torch.full((len(values), 1, 2, 128 * 16), torch.nan, dtype=torch.float16)
    zeros = torch.zeros(len(values), 1, 16)
    attention.append(zeros, values.float(), tails, one_row_items(len(values)))
    out = attention.paged_attention(
        zeros,
        tails,
        torch.zeros(1, 2 * 128 * 16 * 2, dtype=torch.uint8),
        one_row_items(len(values)),
        torch.zeros(0, dtype=torch.int32),
        attention.RAW16,
        1.0,
    )
    assert torch.equal(out, values.float())


def test_the_pool_sleeps_when_idle():
    weight = linear.pack(torch.randn(512, 512))
    dispatch.set_threads(2)
    linear.linear(torch.randn(64, 512), weight)
    time.sleep(0.01)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.005


def test_threads_come_and_go():
    x, weight = torch.randn(64, 300), linear.pack(torch.randn(512, 300))
    expected = linear.linear(x, weight)
    for threads in (3, 1, 2, 4) * 5:
        dispatch.set_threads(threads)
        assert dispatch.native.threads() == threads
        assert_same_bits(linear.linear(x, weight), expected)


def test_callers_in_parallel_do_not_disturb_each_other():
    """The GIL is let go inside, so several Python threads may be in a kernel at once."""
    dispatch.set_threads(2)
    weight = linear.pack(torch.randn(256, 300))
    inputs = [torch.randn(40, 300) for _ in range(4)]
    expected = [linear.linear(x, weight) for x in inputs]
    failures = []

    def call(index: int) -> None:
        for _ in range(100):
            if not torch.equal(linear.linear(inputs[index], weight), expected[index]):
                failures.append(index)

    workers = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
