"""Weights in lines: nothing is lost, what cannot be held is not taken, and bytes lie where the kernels read them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_linear import Matrix, stored

from pitstop.models.weights.tensor import RawTensor
from pitstop.ops import dispatch
from pitstop.ops.linear import linear, lines, ref, rows
from pitstop.ops.linear.lines import Form
from pitstop.ops.linear.packing import pack_lines
from pitstop.ops.linear.plan import BLOCK

CPU = torch.device("cpu")
KINDS = {"Q4_0": "4", "Q4_1": "4", "Q8_0": "8", "I8": "int8", "F16": "f16", "BF16": "bf16"}


def channels(weight: torch.Tensor) -> RawTensor:
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    data = np.concatenate([scales.numpy().view(np.uint8), (weight / scales).round().to(torch.int8).numpy().view(np.uint8)], axis=1)
    return RawTensor("", "I8", tuple(weight.shape), data)


def any_stored(kind: str, weight: torch.Tensor) -> RawTensor | Matrix:
    return channels(weight) if kind == "I8" else stored(kind, weight)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("step", [2, 4])
@pytest.mark.parametrize("shape", [(1, 32), (16, 128), (37, 160), (130, 576)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_packing_loses_nothing(kind, shape, step):
    matrix = any_stored(kind, normal(*shape))
    packed = pack_lines([matrix], CPU, step)
    assert packed.form == Form(KINDS[kind], step)
    values = torch.from_numpy(np.array(matrix.dequantize()))
    assert torch.equal(ref.dequantize(packed), values)
    ids = torch.tensor([shape[0] - 1, 0, shape[0] // 2, 0])
    assert torch.equal(rows(packed, ids), values[ids])
    for wrong in (shape[0], -1):
        with pytest.raises(IndexError):
            rows(packed, torch.tensor([0, wrong]))
    x = normal(3, shape[1])
    with dispatch.use("ref"):
        torch.testing.assert_close(linear(x, packed), x @ values.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_whole_lines(kind):
    packed = pack_lines([any_stored(kind, normal(20, 160))], CPU, 2)
    panels, blocks, words = packed.data.shape
    assert (panels, blocks) == (2, 2)
    assert words * 4 % 128 == 0
    bits = packed.form.bits + {"4": 1, "8": 0.5}.get(packed.form.codes, 0)
    assert words * 32 == lines.PANEL * BLOCK * bits


@pytest.mark.parametrize(("step", "i", "t"), [(2, [3], [1, 2]), (4, [1], [2, 3])])
def test_codes_lie_where_the_tensor_cores_want_them(step, i, t):
    """Bit by bit: thread 4g + t has the words (i, o3), whose nibbles go from input to input + 16, halves to the next input."""
    codes = torch.zeros(16, 128, dtype=torch.uint8)
    zeros = torch.zeros(16, 4, dtype=torch.float16)
    for output, bit in ((0, 0), (1, 0), (5, 3), (8, 6), (15, 4), (3, 5), (2, t[0]), (9, t[1]), (4, i[0])):
        k = 1 << bit
        codes[:] = 0
        codes[output, k] = 9
        words = lines.lay(Form("4", step), codes, zeros, zeros)[0, 0, :256]
        (at,) = words.nonzero().flatten().tolist()
        unit, thread, word = at // 128, at // 4 % 32, at % 4
        assert unit == (k >> 6 & 1)
        assert thread == output % 8 * 4 + (k >> t[0] & 3)
        assert word == (k >> i[0] & 1) * 2 + output // 8
        assert int(words[at]) & 0xFFFFFFFF == 9 << (4 * (k >> 4 & 3) + 16 * (k & 1))


def test_scales_lie_beside_the_codes():
    """16 bytes for threads of the same outputs: of either 32 inputs of a unit, and of the outputs g and g + 8."""
    scales = torch.arange(64, dtype=torch.float16).view(16, 4)
    words = lines.lay(Form("4", 2), torch.zeros(16, 128, dtype=torch.uint8), scales, -scales)[0, 0, 256:].view(2, 8, 2, 2)
    for k6, g, k5, o3 in ((0, 0, 0, 0), (1, 3, 0, 1), (0, 7, 1, 0), (1, 2, 1, 1)):
        pair = words[k6, g, k5, o3].view(1).view(torch.float16).tolist()
        expected = float(scales[g + 8 * o3, 2 * k6 + k5])
        assert pair == [expected, -expected]


def test_parts_of_the_same_codes_are_one_matrix():
    first, second, third = (stored(kind, normal(count, 64)) for kind, count in (("Q4_0", 10), ("Q4_1", 23), ("Q8_0", 5)))
    both = pack_lines([first, second], CPU, 2)
    assert (both.kind, both.out_features) == ("lines", 33)
    assert torch.equal(ref.dequantize(both), torch.from_numpy(np.concatenate([first.dequantize(), second.dequantize()])))
    stack = pack_lines([first, second, third], CPU, 2)
    assert [part.out_features for part in stack.parts] == [33, 5]
    assert stack.out_features == 38
    assert torch.equal(rows(stack, torch.tensor([37, 2])), torch.from_numpy(np.stack([third.dequantize()[4], first.dequantize()[2]])))


def test_what_lines_do_not_hold_is_not_taken():
    assert pack_lines([stored("Q5_0", normal(4, 64))], CPU, 2) is None
    assert pack_lines([stored("Q4_0", normal(4, 64)), stored("Q5_0", normal(4, 64))], CPU, 2) is None
    for kind, scale in (("Q4_0", 9000.0), ("Q4_1", 5000.0), ("Q8_0", 600.0), ("Q8_0", float("nan"))):
        matrix = stored(kind, normal(4, 64))
        matrix.data = matrix.data.copy()
        matrix.data[2, :2] = np.array([scale], "<f2").view(np.uint8)
        assert pack_lines([matrix], CPU, 2) is None
