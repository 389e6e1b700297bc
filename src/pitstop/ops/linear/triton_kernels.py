"""Products with packed weights for GPUs, in Triton: see triton.py for what they take, plan.py for how they are launched.

A tile has outputs as its rows and activation rows as its columns: W [outs, 128] · xᵀ [128, columns], so that one row fills the tensor
cores' tiles as many do. A warp has panels of 16 outputs, for all inputs: sums over inputs stay in one place. lines.py says how words lie.

The arithmetic of an output is fixed: inputs in ascending order within a part (plan.parts), of which the matrix's width decides how many
there are; the parts in ascending order. Blocks may share the parts of a tile: each leaves its sums, and the one that comes last adds them.
The compiler fuses no multiply-adds (triton.options), the kernels name theirs.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _halves(words, KIND: tl.constexpr):
    """Lower and upper halves of 32-bit words as fp16 or, for KIND "bf16", bf16."""
    lower, upper = words.to(tl.int16), (words >> 16).to(tl.int16)
    if KIND == "bf16":
        return lower.to(tl.bfloat16, bitcast=True), upper.to(tl.bfloat16, bitcast=True)
    else:  # a kernel's function has one type
        return lower.to(tl.float16, bitcast=True), upper.to(tl.float16, bitcast=True)


@triton.jit
def _lines(at, there, UNITS: tl.constexpr):
    """The words of UNITS units, [panels, 128, …, 2], higher inputs later: one load each, of two dimensions, so that threads lie side by
    side in shared memory as well."""
    if UNITS == 1:
        return tl.load(at, mask=there, other=0)
    else:  # a kernel's function has one type
        return tl.join(_lines(at, there, UNITS // 2), _lines(at + UNITS // 2 * 128, there, UNITS // 2))


@triton.jit
def _two(at, there):
    """The words of a block's scales of 4-bit codes, [panels, 128, 2]: the later 64 inputs' behind."""
    return tl.join(tl.load(at, mask=there, other=0), tl.load(at + 32, mask=there, other=0))


@triton.jit
def _fields(words, BITS: tl.constexpr):
    """The codes of BITS in words → fp16 of 1024 + code, with dimensions behind for inputs 16 on, of 4 bits for inputs 32 on, and k0.

    1024 + c is fp16 with c in its lowest bits: both halves of a word become numbers at once, without converting.
    """
    if BITS == 4:
        first = tl.join(words, words >> 4)
        pairs = tl.join(first, first >> 8) & 0x000F000F
    else:
        pairs = tl.join(words, words >> 8) & 0x00FF00FF
    lower, upper = _halves(pairs | 0x64006400, "f16")
    return tl.join(lower, upper)


@triton.jit
def _spread(numbers):
    """[…] → […, 2, 2, 2], each eight times: what a group's number belongs to within a thread."""
    numbers = tl.join(numbers, numbers)
    numbers = tl.join(numbers, numbers)
    return tl.join(numbers, numbers)


@triton.jit
def _matrix(values, PANELS: tl.constexpr, STEP: tl.constexpr):
    """[panels, g, t, i, o3, k4, k5, k6, k0] → [outs, inputs]."""
    if STEP == 2:
        ordered = values.permute(0, 4, 1, 7, 6, 5, 3, 2, 8)
    else:
        ordered = values.permute(0, 4, 1, 7, 6, 5, 2, 3, 8)
    return ordered.reshape(PANELS * 16, 128)


@triton.jit
def _weights(words, scales, PANELS: tl.constexpr, KIND: tl.constexpr, STEP: tl.constexpr):
    """The words of a block, and those of its scales → what the tensor cores multiply, [outs, 128] fp16 or bf16."""
    if KIND == "4":
        codes = _fields(words, 4).reshape(PANELS, 8, 4, 2, 2, 2, 2, 2, 2).permute(0, 1, 2, 3, 4, 6, 7, 5, 8) - 1024.0
        scale, minimum = _halves(scales, "f16")  # panel, thread, (k5, o3), k6
        scale = _spread(scale).reshape(PANELS, 8, 4, 2, 2, 2, 2, 2, 2).permute(0, 1, 2, 6, 4, 7, 3, 5, 8)
        minimum = _spread(minimum).reshape(PANELS, 8, 4, 2, 2, 2, 2, 2, 2).permute(0, 1, 2, 6, 4, 7, 3, 5, 8)
        values = tl.fma(codes, scale, minimum)
    elif KIND == "8" or KIND == "int8":
        values = _fields(words, 8).reshape(PANELS, 8, 4, 2, 2, 2, 2, 2, 2).permute(0, 1, 2, 3, 4, 7, 5, 6, 8) - 1152.0
        if KIND == "8":
            lower, upper = _halves(scales, "f16")  # panel, thread, (k6, o3)
            scale = _spread(tl.join(lower, upper)).reshape(PANELS, 8, 4, 2, 2, 2, 2, 2, 2)  # …, k6, o3, k5
            values = values * scale.permute(0, 1, 2, 6, 4, 7, 5, 3, 8)
    else:
        lower, upper = _halves(words, KIND)
        values = tl.join(lower, upper).reshape(PANELS, 8, 4, 2, 2, 2, 2, 2, 2)
    return _matrix(values, PANELS, STEP)


@triton.jit
def _rounded(x, KIND: tl.constexpr):
    """Activations as the tensor cores take them: bf16, or fp16 of a sixteenth."""
    if KIND == "bf16":
        return x.to(tl.bfloat16)
    else:
        return (x.to(tl.float32) * 0.0625).to(tl.float16)


@triton.jit
def _finish(
    total, out, here, scales_at, bias_at, to, outs, KIND: tl.constexpr, BIAS: tl.constexpr
):  # fmt: skip
    """Leave a tile's sums as numbers: activations' sixteenths undone, scales of outputs and bias in their order."""
    if KIND != "bf16":
        total = total * 16.0
    if KIND == "int8":
        total = total * tl.load(scales_at + out, mask=out < outs, other=0.0)[:, None]
    if BIAS:
        total = total + tl.load(bias_at + out, mask=out < outs, other=0.0)[:, None]
    tl.store(to[None, :] + out[:, None], total, mask=here[None, :] & (out < outs)[:, None])


@triton.jit
def multiply(
    x_rows, here, data, scales_at, bias_at, to, sums, arrived, outs, depth, blocks, per_part, parts, per_block,
    KIND: tl.constexpr, STEP: tl.constexpr, WORDS: tl.constexpr, PANELS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    READY: tl.constexpr, SHARED: tl.constexpr, PARTED: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The tile of outputs program_id(0) for the rows at x_rows [COLUMNS], where they are `here`, of which program_id(1) is the number.

    READY: x is rounded already. SHARED: a block has `per_block` parts, whose sums go to `sums` [tiles, parts, COLUMNS, outs of a tile];
    `arrived` has a zero for each tile, before and after. PARTED: there is more than one part.
    """
    UNITS: tl.constexpr = 2 if KIND == "4" else 4 if KIND == "8" or KIND == "int8" else 8
    OUTS: tl.constexpr = PANELS * 16
    tile = tl.program_id(0)
    first_part = tl.program_id(2) * per_block
    start, end = first_part * per_part, tl.minimum((first_part + per_block) * per_part, blocks)
    panel = (tile * PANELS + tl.arange(0, PANELS))[:, None]
    word = tl.arange(0, 128)[None, :]  # 4 of each thread
    there = panel * 16 < outs
    panel_at = data + panel.to(tl.int64) * blocks * WORDS
    codes_at = panel_at + word
    scales_of = panel_at + UNITS * 128 + (word // 16 * 4 + word % 4)
    k = tl.arange(0, 128)
    x_at = x_rows[:, None] + k[None, :]
    part_sum = tl.zeros([OUTS, COLUMNS], tl.float32)
    total = tl.zeros([OUTS, COLUMNS], tl.float32)
    out = tl.arange(0, OUTS)
    mine = sums + ((tl.program_id(1) * tl.num_programs(0) + tile) * parts).to(tl.int64) * (COLUMNS * OUTS)
    mine = mine + tl.arange(0, COLUMNS)[None, :] * OUTS + out[:, None]
    for block in tl.range(start, end, num_stages=STAGES):
        words = _lines(codes_at + block * WORDS, there, UNITS)
        if KIND == "4":
            scales = _two(scales_of + block * WORDS, there)
        elif KIND == "8":
            scales = tl.load(scales_of + block * WORDS, mask=there, other=0)
        else:
            scales = words
        x = tl.load(x_at + block * 128, mask=here[:, None] & (block * 128 + k < depth)[None, :], other=0.0)
        if not READY:
            x = _rounded(x, KIND)
        part_sum = tl.dot(_weights(words, scales, PANELS, KIND, STEP), tl.trans(x), part_sum)
        if PARTED:  # noqa: SIM102 (a constant, decided when it is compiled)
            if (block % per_part == per_part - 1) | (block == blocks - 1):
                if SHARED:
                    tl.store(mine + block // per_part * (COLUMNS * OUTS), part_sum)
                else:
                    total += part_sum
                part_sum = tl.zeros([OUTS, COLUMNS], tl.float32)
    if not PARTED:
        total = part_sum
    out += tile * OUTS
    if SHARED:
        tl.debug_barrier()  # all of this block's sums are written
        at = arrived + tl.program_id(1) * tl.num_programs(0) + tile
        if tl.atomic_add(at, 1, sem="acq_rel") == tl.num_programs(2) - 1:
            for part in range(parts):
                total += tl.load(mine + part * (COLUMNS * OUTS), cache_modifier=".cg")
            tl.store(at, 0)
            _finish(total, out, here, scales_at, bias_at, to, outs, KIND, BIAS)
    else:
        _finish(total, out, here, scales_at, bias_at, to, outs, KIND, BIAS)


@triton.jit
def product(
    x_at, data, scales_at, bias_at, out_at, sums, arrived,
    rows, outs, depth, x_stride, out_stride, blocks, per_part, parts, per_block,
    KIND: tl.constexpr, STEP: tl.constexpr, WORDS: tl.constexpr, PANELS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    READY: tl.constexpr, SHARED: tl.constexpr, PARTED: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of outputs, tiles of rows, blocks that share a tile): x [rows, depth] times the weight into out [rows, outs] fp32."""
    row = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    multiply(
        x_at + row.to(tl.int64) * x_stride, row < rows, data, scales_at, bias_at, out_at + row.to(tl.int64) * out_stride, sums, arrived,
        outs, depth, blocks, per_part, parts, per_block,
        KIND, STEP, WORDS, PANELS, COLUMNS, STAGES, READY, SHARED, PARTED, BIAS,
    )  # fmt: skip
