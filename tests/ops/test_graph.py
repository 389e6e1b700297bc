"""Graphs of native calls: replays give the eager bits on new inputs, and what a graph could not replay is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from pitstop.engine.graphs import DecodeGraphs
from pitstop.errors import Unsupported
from pitstop.ops.activation import silu_mul
from pitstop.ops.graph import Arena, Graph
from pitstop.ops.linear import linear, pack
from pitstop.ops.norm import add_rms_norm, rms_norm

WIDTH = 48
generator = torch.Generator().manual_seed(0)
NORM = torch.ones(WIDTH)
GATE_UP = pack(torch.randn(2 * WIDTH, WIDTH, generator=generator))
DOWN = pack(torch.randn(WIDTH, WIDTH, generator=generator))


def forward(x: torch.Tensor) -> torch.Tensor:
    hidden = rms_norm(x, NORM, 1e-5)
    for _ in range(3):
        x, hidden = add_rms_norm(x, linear(silu_mul(linear(hidden, GATE_UP)), DOWN), NORM, 1e-5)
    return linear(hidden, DOWN)


def inputs(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


def steps(function: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor) -> DecodeGraphs:
    """Of a model whose forward is the function, of which the tokens are the embedded rows."""
    model = SimpleNamespace(embed=lambda x: x, forward=lambda x, view, runs: function(x), config=SimpleNamespace(vocab_size=3))
    return DecodeGraphs(model, SimpleNamespace(tokens=tokens))


def test_replays_equal_eager_runs_and_share_memory() -> None:
    arena = Arena()
    graphs = {rows: Graph(forward, inputs(rows, 0), arena) for rows in (1, 5, 32)}
    assert len(arena._blocks) <= 18, "intermediate results are not reused"
    for seed in range(1, 4):
        for rows, graph in graphs.items():
            x = inputs(rows, seed)
            graph.input.copy_(x)
            arena.poison()
            assert torch.equal(graph.replay(), forward(x))


def test_views_keep_their_memory() -> None:
    """A slice outlives the tensor it was cut from: its memory must not be lent again."""

    def sliced(x: torch.Tensor) -> torch.Tensor:
        part = linear(x, GATE_UP)[:, :WIDTH]
        linear(x, GATE_UP)
        return linear(part, DOWN)

    graph = Graph(sliced, inputs(2, 0), Arena())
    x = inputs(2, 1)
    graph.input.copy_(x)
    assert torch.equal(graph.replay(), sliced(x))


@pytest.mark.parametrize("place", ["inside", "last"])
def test_torch_calls_in_a_recorded_step_are_refused(place: str) -> None:
    kept = []  # or the replay would read freed memory

    def planted(x: torch.Tensor) -> torch.Tensor:
        kept.append(x * 2)
        return forward(kept[-1]) if place == "inside" else forward(x) * 2

    with pytest.raises(RuntimeError, match=r"differs from the eager one|must end in an op"):
        steps(planted, inputs(2, 0)).step(2)


def test_an_op_without_a_native_kernel_is_refused() -> None:
    with pytest.raises(Unsupported):
        Graph(lambda x: rms_norm(x.double(), NORM.double(), 1e-5), inputs(1, 0), Arena())


def test_decode_steps_without_a_native_kernel_run_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    def planted(x: torch.Tensor) -> torch.Tensor:
        return forward(rms_norm(x.double(), NORM.double(), 1e-5).float())

    planted_steps = steps(planted, tokens := inputs(2, 0))
    for seed in (0, 1):
        tokens.copy_(inputs(2, seed))
        assert torch.equal(planted_steps.step(2), planted(inputs(2, seed)))
    assert [record.message for record in caplog.records if "not recorded" in record.message and "x must be float32" in record.message]
    assert len(caplog.records) == 1


def test_recording_leaves_dispatch_as_it_was() -> None:
    from pitstop.ops import dispatch

    before = dispatch.native, dispatch.empty, dispatch.active()
    with pytest.raises(ZeroDivisionError):
        Graph(lambda x: 1 / 0, inputs(1, 0), Arena())
    assert (dispatch.native, dispatch.empty, dispatch.active()) == before
