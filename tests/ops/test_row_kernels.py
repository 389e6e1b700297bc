"""The kernels that work row by row in Triton's interpreter against references and native kernels, and faults that must show."""

from __future__ import annotations

import pytest
import torch
from interpreter import interpret

from pitstop.errors import Unsupported
from pitstop.ops import activation, attention, dispatch, norm, rope, sample

PROGRAM = "interpreted_rows.py"
QUICK = {"norms": 16, "activations": 18, "rotations": 9, "choices": 4, "draws": 2, "caches": 2, "edges": 6, "alone": 28}
"""Checks and how many answers each has."""


def wrong(found: dict[str, float], check: str) -> dict[str, float]:
    """Norms may err as their references say, GELU with erf too; all else must be the same."""
    tolerated = {name: 1.0 if "norm" in name or "gelu_erf" in name else 0.0 for name in found}
    tolerated |= dict.fromkeys(found, 0.0) if check == "alone" else {}
    return {name: error for name, error in found.items() if not error <= tolerated[name]}


def test_answers_are_the_references():
    found = interpret(PROGRAM, *QUICK)
    assert {check: wrong(errors, check) for check, errors in found.items() if wrong(errors, check)} == {}
    assert {check: len(errors) for check, errors in found.items()} == QUICK


@pytest.mark.slow
@pytest.mark.parametrize(("check", "count"), [("other_caches", 22), ("more_draws", 4)])
def test_more_answers_are_the_references(check, count):
    found = interpret(PROGRAM, check)[check]
    assert wrong(found, check) == {}
    assert len(found) == count


FAULTS = {
    "eps outside the root": ("tl.sum(x * x, 1), count) + eps)", "tl.sum(x * x, 1), count)) + eps", "norms"),
    "the mean of a whole tile": ("tl.full([ROWS], WIDTH, tl.float32)", "tl.full([ROWS], COLUMNS, tl.float32)", "norms"),
    "padding that counts as numbers": ("x = tl.where(here, x - tl.div_rn", "x = tl.where(row[:, None] >= 0, x - tl.div_rn", "norms"),
    "a neighbouring head": ("row % heads * WIDTH", "(row + 1) % heads * WIDTH", "norms"),
    "no bias": ("x += tl.load(bias_at + column,", "x = x + 0 * tl.load(bias_at + column,", "norms"),
    "gates for factors": ("tl.load(at + WIDTH, mask", "tl.load(at, mask", "activations"),
    "e^x for e^-x": ("exp(0.0 - x)", "exp(x)", "activations"),
    "half of a hyperbolic tangent's exponent": ("exp(x + x)", "exp(x)", "activations"),
    "NaN that becomes a number": ("-104.0, propagate_nan=tl.PropagateNan.ALL", "-104.0", "activations"),
    "a short fraction": ("tl.static_range(8)", "tl.static_range(3)", "activations"),
    "a neighbour's position": ("tl.load(positions + row)", "tl.load(positions + row // 2)", "rotations"),
    "pairs in the wrong order": (
        "tl.join(a * cos - b * sin, b * cos + a * sin)", "tl.join(b * cos + a * sin, a * cos - b * sin)", "rotations",
    ),
    "a turn the other way": ("at, a * cos - b * sin, mask", "at, a * cos + b * sin, mask", "rotations"),
    "differences before sums": ("tl.join(a + b, a - b)", "tl.join(a - b, a + b)", "rotations"),
    "a position outside": ("(position >= 0) & (position < context)", "position < context", "rotations"),
    "of equal logits the last": (
        "tl.where(column < COUNT, keys, -(2**63)), 0)", "tl.where(column < COUNT, keys ^ LOW, -(2**63)), 0) ^ LOW", "choices",
    ),
    "zeros of two kinds": ("(logits + 0.0)", "logits", "choices"),
    "NaN is the least": ("tl.where(logits != logits, LOW,", "tl.where(logits != logits, -LOW,", "choices"),
    "the last logit is not there": ("column < COUNT, other=0.0), column)", "column < COUNT - 1, other=0.0), column)", "choices"),
    "a token too late": ("tl.sum((running <= target)", "tl.sum((running < target)", "more_draws"),
    "a tile too late": ("tl.cumsum(sums, 0) <= target", "tl.cumsum(sums, 0) < target", "more_draws"),
    "a share of the tile's weight": ("target -= tl.sum(tl.where(passed, sums, 0), 0)", "target = target % 2**40", "draws"),
    "equal weights by the higher id": ("(column ^ LAST_ID)", "column", "draws"),
    "tokens beyond the vocabulary": ("tl.where(column < VOCAB, keys, -1)", "keys", "draws"),
    "the last token kept is left out": ("tl.where(keys >= bar, keys >> ID_BITS, 0)", "tl.where(keys > bar, keys >> ID_BITS, 0)", "draws"),
    "one more than wanted": ("number_left) >= wanted", "number_left) > wanted", "draws"),
    "halving ends early": ("while number - beyond > 1", "while number - beyond > 2", "draws"),
    "the few noted are taken for enough": ("sum(weight, 0) >= wanted), low, 0)", "sum(weight, 0) >= wanted), low, low)", "more_draws"),
    "a key where none is": ("tl.full([COLUMNS], -1, tl.int64)", "tl.full([COLUMNS], 2**60, tl.int64)", "draws"),
    "top_p of all": ("bar, total = _raised(keys_at, deepest, bar, top_k,", "bar, _ = _raised(keys_at, deepest, bar, top_k,", "draws"),
    "no min_p": ("bar = least << ID_BITS", "bar = tl.full([], 0, tl.int64)", "more_draws"),
    "a nucleus of nothing": ("bar, tl.ceil(top_p * total.to(tl.float64))", "bar, (top_p * total.to(tl.float64))", "more_draws"),
    "no temperature": ("tl.div_rn(logits - most, temperature)", "logits - most", "draws"),
    "NaN is not the likeliest": ("(logits == most) | (logits != logits)", "logits == most", "draws"),
    "NaN is not seen": ('(best != best).to(tl.int32), 0) > 0, float("nan")', "(best != best).to(tl.int32), 0) > 0, 0.0", "draws"),
    "keys rounded towards zero": (
        "k = tl.load(k_at + rows * (k_row * UNIT) + at, mask=here, other=0.0).to(tl.float16)",
        'k = tl.load(k_at + rows * (k_row * UNIT) + at, mask=here, other=0.0).to(tl.float16, fp_downcast_rounding="rtz")', "caches",
    ),
    "the neighbouring token's place": ("(start % 128 + token)[:, None]", "((start + 1) % 128 + token)[:, None]", "caches"),
    "a row too many": ("(token < count)[:, None]", "(token <= count)[:, None]", "caches"),
    "halves of bytes are exchanged": ("low | (high << 4)", "high | (low << 4)", "caches"),
    "the neighbouring token's range": ("tl.store(ranges + row, scale,", "tl.store(ranges + (row ^ 1), scale,", "caches"),
    "codes cut off": ("(code + 8388608.0).to(tl.int32, bitcast=True)", "code.to(tl.int32)", "caches"),
    "halves rounded up": ("(code + 8388608.0).to(tl.int32, bitcast=True)", "(code + 0.5).to(tl.int32)", "edges"),
    "a segment that is not sealed": ("if page >= 0:", "if page > 0:", "caches"),
    "padding that is sealed": ("if page >= 0:", "page = tl.maximum(page, 0)\n    if page >= 0:", "caches"),
    "the first segment is like the others": ("if start < 128:", "if start < 0:", "caches"),
    "a plane's padding": ("tl.where(half == 1, zero, 0.0)", "zero", "caches"),
    "a zero of the wrong sign": ("least + 0.0, most + 0.0", "least, most", "edges"),
    "NaN among numbers": ("(here & (x != x)).to(tl.int32), axis) > 0", "(here & (x != x)).to(tl.int32), axis) > 1", "edges"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(fault):
    old, new, check = FAULTS[fault]
    found = interpret(PROGRAM, "--plant", old, new, check)[check]
    assert wrong(found, check)


X, ITEMS = torch.ones(1, 128), torch.zeros(1, 6, dtype=torch.int32)
TAILS, PAGES = torch.zeros(1, 1, 2, 128 * 128, dtype=torch.float16), torch.zeros(1, 128 * 128 * 4, dtype=torch.uint8)
CALLS = {
    "rms_norm": lambda: norm.rms_norm(X, X[0], 1e-6),
    "add_rms_norm": lambda: norm.add_rms_norm(X, X, X[0], 1e-6),
    "layer_norm": lambda: norm.layer_norm(X, X[0], X[0], 1e-6),
    "rotate": lambda: rope.rotate(X[:, None], ITEMS[0, :1], X[:, :64], X[:, :64], False),
    "hadamard": lambda: rope.hadamard(X[:, None]),
    "silu_mul": lambda: activation.silu_mul(X),
    "gelu_erf": lambda: activation.gelu_erf(X),
    "softcap": lambda: activation.softcap(X, 1.0),
    "greedy": lambda: sample.greedy(X),
    "draw": lambda: sample.draw(X, torch.zeros(1, 5, dtype=torch.float64)),
    "append": lambda: attention.append(X[:, None], X[:, None], TAILS, ITEMS),
    "seal": lambda: attention.seal(TAILS, PAGES, ITEMS, ITEMS[0], attention.RAW16),
}


@pytest.mark.parametrize("name", CALLS)
def test_where_there_is_no_gpu_they_decline(name):
    with dispatch.use("triton"), pytest.raises(Unsupported, match=rf"{name}\(.*triton: \w+ is not on a GPU"):
        CALLS[name]()
