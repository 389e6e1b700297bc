"""Kernels compiled ahead of time, for GPUs that are not here, and what the binary says about them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from pitstop.ops import banks
from pitstop.ops.chip import Chip, resident_blocks

_REGISTERS, _FRAME = 0x2F, 0x11
"""Attributes of a cubin's .nv.info section: (symbol, count) and (symbol, bytes)."""


class Planned(Protocol):
    """What a launch plan says: shared: bytes a block, registers: a thread, both at most."""

    shared: int
    registers: int
    warps: int


WIDE = 0.75
"""The least share of bytes in loads of 16. The others are ranges of few codes (of heads of 64 and 4 bits a ninth of all), what says which
work is whose, and sums that blocks leave for each other, which lie as tensor cores hold them."""


class Compiled(NamedTuple):
    """registers a thread; frame: bytes of its memory that stand in for registers (spills), 0 where none do; shared: bytes a block.

    tensor: instructions of the tensor cores by name. wide_share: of the bytes that a thread's loads from global memory name, copies to
    shared memory included, those that come 16 at a time.
    """

    registers: int
    frame: int
    shared: int
    tensor: dict[str, int]
    wide_share: float
    ttgir: str


def compile(
    kernel: object,
    signature: Mapping[str, str],
    constants: Mapping[str, int | bool | str],
    arch: int,
    options: Mapping[str, int],
    aligned: set[str],
) -> Compiled:
    """Compile a Triton kernel for sm_`arch`. signature: Triton's types of the arguments that are no constants; options: of a launch;
    aligned: arguments that are multiples of 16, pointers included. Triton keeps results on disk, by source and options."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    types = {name: signature.get(name, "constexpr") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, types, constexprs=values, attrs=attributes)
    binary = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=dict(options))
    registers, frame = facts(binary.asm["cubin"])
    ptx = binary.asm["ptx"]
    return Compiled(registers, frame, binary.metadata.shared, tensor_instructions(ptx), wide_share(ptx), binary.asm["ttgir"])


def tensor_instructions(ptx: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in re.findall(r"\b(wgmma\.mma_async|mma)\.sync", ptx):
        found[name] = found.get(name, 0) + 1
    return found


def wide_share(ptx: str) -> float:
    """The share of bytes in loads of 16."""
    widths = [int(size, 16) for size in re.findall(r"cp\.async\.c[ag]\.shared\.global[^;]*?\], 0x(\w+)", ptx)]
    widths += [
        int(count or 1) * int(bits) // 8 for count, bits in re.findall(r"ld\.global(?:\.\w+(?:::\w+)?)*?(?:\.v(\d))?\.[bus](\d+)", ptx)
    ]
    return sum(width for width in widths if width == 16) / max(1, sum(widths))


def facts(cubin: bytes) -> tuple[int, int]:
    """Registers and frame of the one kernel in a cubin (ELF, little-endian, 64 bits)."""
    (at,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, at + size * i) for i in range(count)]
    registers = frame = 0
    for name, _, _, _, start, length in sections:
        label = cubin[sections[names][4] + name :].split(b"\0", 1)[0]
        if label != b".nv.info":
            continue
        end = start + length
        while start < end:
            form, attribute, value = struct.unpack_from("<BBH", cubin, start)
            start += 4
            if form == 4:  # `value` bytes follow
                if attribute == _REGISTERS:
                    registers = max(registers, struct.unpack_from("<II", cubin, start)[1])
                elif attribute == _FRAME:
                    frame = max(frame, struct.unpack_from("<II", cubin, start)[1])
                start += value
    if not registers:
        raise ValueError("the cubin names no register count")
    return registers, frame


def misfits(compiled: Compiled, chip: Chip, wide: float) -> list[str]:
    """What speaks against any kernel on a chip, in words. wide: the least share of bytes in loads of 16."""
    wrong = []
    if compiled.frame:
        wrong.append(f"{compiled.frame} bytes of registers are spilled")
    if compiled.shared > chip.shared_block:
        wrong.append(f"{compiled.shared} bytes of shared memory pass the block's {chip.shared_block}")
    if compiled.wide_share < wide:
        wrong.append(f"only {compiled.wide_share:.0%} of the bytes are loaded 16 at a time")
    return wrong


def products(ttgir: str) -> Iterator[tuple[str, str, list[str]]]:
    """Of each product of the tensor cores: its rows, its layout as text, how many neighbours in the reduced dimension a thread holds."""
    layouts = dict(re.findall(r"^(#\w+) = #ttg\.nvidia_mma<\{(.*)\}>", ttgir, re.MULTILINE))
    for line in ttgir.splitlines():
        if re.search(r"\btt\.dot |warp_group_dot ", line):
            rows = re.search(r"-> tensor<(\d+)x\d+xf32, (#\w+)>", line)
            yield rows[1], layouts[rows[2]], sorted(set(re.findall(r"kWidth = (\d+)", line)))


def objections(compiled: Compiled, planned: Planned, chip: Chip) -> list[str]:
    """What is wrong with it, in words; nothing if it is as planned."""
    wrong = misfits(compiled, chip, WIDE)
    if compiled.shared > planned.shared:
        wrong.append(f"{compiled.shared} bytes of shared memory are more than the {planned.shared} planned")
    if compiled.registers > planned.registers:
        wrong.append(f"{compiled.registers} registers are more than the {planned.registers} planned")
    meant = "mma" if chip.arch < 90 else "wgmma.mma_async"
    if set(compiled.tensor) != {meant}:
        wrong.append(f"products by {', '.join(compiled.tensor) or 'no tensor cores'}, not {meant}")
    return wrong


def resident(compiled: Compiled, planned: Planned, chip: Chip) -> int:
    """Blocks that an SM holds, by what was compiled."""
    return resident_blocks(chip, planned.warps, compiled.registers, compiled.shared)


def conflicts(compiled: Compiled) -> tuple[int, int]:
    """(conflicts, passes at best) of all moves to and from shared memory that a warp makes in the kernel's text."""
    moves = banks.accesses(compiled.ttgir)
    return sum(move.conflicts for move in moves), sum(move.best for move in moves)
