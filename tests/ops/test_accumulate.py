"""accumulate: one addition for what lies within, nothing for what does not, alike in torch and in a recorded graph."""

from __future__ import annotations

import pytest
import torch

from pitstop.ops import dispatch
from pitstop.ops.graph import Arena, Graph
from pitstop.ops.linear import accumulate, linear, pack


def test_only_the_block_changes() -> None:
    y, part = torch.full((6, 50), -0.0), torch.randn(2, 20, generator=torch.Generator().manual_seed(0))
    part[0, 0] = 0.0
    expected = y.clone()
    expected[3:5, 17:37] += part
    accumulate(y, part, 3, 17)
    assert torch.equal(y.view(torch.int32), expected.view(torch.int32))
    assert torch.signbit(y[0, 0])
    assert not torch.signbit(y[3, 17])


@pytest.mark.parametrize("place", [(-1, 0), (0, -1), (5, 0), (0, 31)])
def test_a_block_that_lies_outside_is_refused(place: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="does not lie within"):
        accumulate(torch.zeros(6, 50), torch.zeros(2, 20), *place)


def test_a_graph_adds_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(1)
    whole, down, up = (pack(torch.randn(shape, generator=generator)) for shape in ((50, 48), (5, 48), (20, 5)))

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = linear(x, whole)
        accumulate(y, linear(linear(x[2:5], down), up), 2, 17)
        accumulate(y, linear(linear(x[:1], down), up), 0, 30)
        return y

    def inputs() -> torch.Tensor:
        return torch.randn(6, 48, generator=generator)

    arena = Arena()
    graph = Graph(forward, inputs(), arena)
    for _ in range(3):
        arena.poison()
        graph.input.copy_(x := inputs())
        assert torch.equal(graph.replay(), forward(x))
        with dispatch.use("ref"):
            assert torch.allclose(graph.replay(), forward(x), atol=1e-4)
