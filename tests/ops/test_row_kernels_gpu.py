"""The kernels that work row by row on a GPU: the interpreter's checks, and all of them in one CUDA graph."""

from __future__ import annotations

import interpreted_rows as interpreted
import pytest
import torch
from op_bits import frequencies
from test_row_kernels import wrong

from pitstop.ops import activation, attention, dispatch, norm, rope, sample
from pitstop.ops.attention.ref import make_inputs
from pitstop.ops.sample.ref import make_draws

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("check", interpreted.CHECKS)
def test_answers_are_the_references(check):
    assert wrong(interpreted.CHECKS[check](), check) == {}


def test_a_captured_step_reads_nothing_back_and_allocates_nothing_but_results():
    """Replayed on other rows, items and positions, it gives what those give by themselves."""
    layout = interpreted.LAYOUTS["4 bits and a lead"]
    inputs = make_inputs(1, [(126, 4), (250, 6), (0, 3)], heads=2, kv_heads=2, dim=64, dtype=torch.float16, layout=layout)
    items = torch.cat([inputs.items, interpreted.PADDING.expand(4, 6)])
    first, live = [interpreted.PADDING.expand(len(items), 6).contiguous(), items]
    k, v, tails, pages, table = (tensor.cuda() for tensor in (inputs.k, inputs.v, inputs.tails, inputs.pages, inputs.table))
    expected = tails.clone(), pages.clone()
    cos, sin = (one.cuda() for one in rope.tables(400, frequencies(64, 10000.0)))
    draws = make_draws(1, len(k)).cuda()
    weight, positions = torch.rand(128, device="cuda"), torch.zeros(len(k), dtype=torch.int32, device="cuda")
    buffer, x = first.cuda(), torch.randn(len(k), 128, device="cuda")

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        y = norm.add_rms_norm(x, x, weight, 1e-6)[1]
        keys = rope.hadamard(rope.rotate(k, positions, cos, sin, False))
        attention.append(keys, v, tails, buffer)
        attention.seal(tails, pages, buffer, table, layout)
        logits = activation.softcap(activation.silu_mul(y), 30.0)
        return sample.greedy(logits), sample.draw(logits, draws)

    with dispatch.use("triton"):
        step()  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step()
        x.normal_()
        positions.copy_(torch.arange(len(k)))
        buffer.copy_(live)
        graph.replay()
        replayed = [tensor.clone() for tensor in (*found, tails.view(torch.int16), pages)]
        tails.copy_(expected[0])
        pages.copy_(expected[1])
        again = step()
    for one, other in zip(replayed, (*again, tails.view(torch.int16), pages), strict=True):
        assert torch.equal(one, other)
