"""The activations for GPUs, in Triton: operation by operation the native kernels (csrc/kernels.cpp, csrc/vec.h), so that the bits are the
same; GELU with erf is that of fp64, rounded once."""

from __future__ import annotations

import triton
import triton.language as tl

_HEX = float.fromhex
LOG2_E = tl.constexpr(_HEX("0x1.715476p0"))
ROUNDER = tl.constexpr(_HEX("0x1.8p23"))
"""Added to a number, it leaves the nearest integer in the lowest bits."""
ROUNDER_BITS = tl.constexpr(0x4B400000)
LN_2, LN_2_REST = tl.constexpr(_HEX("-0x1.63p-1")), tl.constexpr(_HEX("0x1.bd0106p-13"))
C6, C5, C4, C3 = (tl.constexpr(_HEX(c)) for c in ("0x1.6d138p-10", "0x1.120de4p-7", "0x1.555518p-5", "0x1.5554dap-3"))


@triton.jit
def exp(x):
    """e^x within 1.1 ulp: 2^n e^r, with e^r by a polynomial of the sixth degree."""
    x = tl.maximum(x, -104.0, propagate_nan=tl.PropagateNan.ALL)
    x = tl.minimum(x, 89.0, propagate_nan=tl.PropagateNan.ALL)
    shifted = tl.fma(x, LOG2_E, ROUNDER)
    n = shifted - ROUNDER
    r = tl.fma(n, LN_2, x)
    r = tl.fma(n, LN_2_REST, r)
    q = tl.fma(r, C6, C5)
    q = tl.fma(q, r, C4)
    q = tl.fma(q, r, C3)
    q = tl.fma(q, r, 0.5)
    e = tl.fma(r * r, q, r) + 1.0
    whole = shifted.to(tl.int32, bitcast=True) - ROUNDER_BITS
    low = whole >> 1
    high = whole - low
    return e * ((low + 127) << 23).to(tl.float32, bitcast=True) * ((high + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _gelu_erf(x):
    """x / 2 · erfc(-x / √2). 1 + erf loses what is small to what cancels: there it is Laplace's continued fraction (Abramowitz and Stegun
    7.1.14)."""
    x = x.to(tl.float64)
    z = x * 0.7071067811865476
    depth = tl.minimum(tl.maximum(-z, 4.0), 40.0)
    above, below = depth, tl.full(x.shape, 1.0, tl.float64)
    for i in tl.static_range(8):
        above, below = depth * above + (4.0 - 0.5 * i) * below, above
    tail = tl.exp(-depth * depth) * 0.5641895835477563 * below / above
    return (x * 0.5 * tl.where(z < -4.0, tail, 1.0 + tl.erf(z))).to(tl.float32)


@triton.jit
def _activated(x, cap, KIND: tl.constexpr):
    if KIND == "silu":
        return tl.div_rn(x, 1.0 + exp(0.0 - x))
    elif KIND == "gelu_tanh":
        exponent = x * tl.fma(x * x, -0.071354816, -1.5957691)
        return tl.div_rn(x, 1.0 + exp(exponent))
    elif KIND == "gelu_erf":
        return _gelu_erf(x)
    else:  # softcap
        x = tl.div_rn(x, tl.full(x.shape, 1.0, tl.float32) * cap)
        return cap * (1.0 - tl.div_rn(tl.full(x.shape, 2.0, tl.float32), exp(x + x) + 1.0))


@triton.jit(do_not_specialize=["x_row", "rows"])
def activate(
    x_at, out_at, x_row, rows, cap,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, UNIT: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of ROWS rows, tiles of COLUMNS columns). GATED: WIDTH gates, then WIDTH factors, in rows x_row · UNIT numbers apart."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = x_at + row.to(tl.int64)[:, None] * (x_row * UNIT) + column[None, :]
    value = _activated(tl.load(at, mask=here, other=0.0), cap, KIND)
    if GATED:
        value *= tl.load(at + WIDTH, mask=here, other=0.0)
    tl.store(out_at + row.to(tl.int64)[:, None] * WIDTH + column[None, :], value, mask=here)
