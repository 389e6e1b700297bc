"""Bank conflicts in shared memory, counted from Triton's intermediate form: which addresses do the lanes of a warp touch at once?

Shared memory has 32 banks of 4 bytes. One pass serves each bank once: the addresses of 32 lanes of up to 4 bytes, 16 of 8, 8 of 16. An
access takes as many passes as the busiest bank has different words; those beyond the first are conflicts. Layouts are linear over bits: the
element that (register, lane) holds is the exclusive-or of one vector (row, column, as many as the tensor has) for each bit that is set.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Vector = tuple[int, ...]
Basis = tuple[Vector, ...]


class Registers(NamedTuple):
    """How a tensor lies in the registers of the first warp: vectors of the bits of register and lane."""

    register: Basis
    lane: Basis


class Shared(NamedTuple):
    """How a tensor lies in shared memory: rows of `order`'s fastest dimension, `vec` elements together, which are exchanged by an
    exclusive-or with (row / per_phase) % max_phase; split into blocks of `width` elements of the fastest dimension, 0: not split.
    Dimensions beyond two follow in their order."""

    order: Vector
    vec: int
    per_phase: int
    max_phase: int
    width: int = 0

    def offset(self, at: Vector, shape: Vector) -> int:
        """Of an element, in elements."""
        fast, slow = at[self.order[0]], at[self.order[1]]
        width = self.width or shape[self.order[0]]
        block, inside = divmod(fast, width)
        phase = slow // self.per_phase % self.max_phase
        swapped = (inside // self.vec ^ phase) * self.vec + inside % self.vec
        rest = 0
        for axis in reversed(self.order[2:]):
            rest = rest * shape[axis] + at[axis]
        return ((rest * (shape[self.order[0]] // width) + block) * shape[self.order[1]] + slow) * width + swapped


class Access(NamedTuple):
    """An instruction that every warp carries out: what, of how many bytes an element, passes needed and passes at best."""

    operation: str
    passes: int
    best: int

    @property
    def conflicts(self) -> int:
        return self.passes - self.best


def _bits(count: int) -> list[int]:
    return [1 << i for i in range(count.bit_length() - 1)]


def blocked(per_thread: Vector, per_warp: Vector, warps: Vector, order: Vector, shape: Vector) -> Registers:
    """The layout where each thread holds a small block, threads lie side by side, and the whole is repeated over the tensor."""
    unit = [1] * len(shape)
    register, lane = [], []
    for sizes, into in ((per_thread, register), (per_warp, lane)):
        for axis in order:
            for bit in _bits(sizes[axis]):
                into.append(_vector(axis, bit * unit[axis], shape))
        unit = [one * size for one, size in zip(unit, sizes, strict=True)]
    unit = [one * size for one, size in zip(unit, warps, strict=True)]
    for axis in order:
        step = unit[axis]
        while step < shape[axis]:
            register.append(_vector(axis, step, shape))
            step *= 2
    return Registers(tuple(register), tuple(lane))


def _vector(axis: int, step: int, shape: Vector) -> Vector:
    step = step if step < shape[axis] else 0  # threads beyond the tensor hold what others do
    return tuple(step if dimension == axis else 0 for dimension in range(len(shape)))


def tensor_core(warps: tuple[int, int], instruction: tuple[int, int], shape: tuple[int, int]) -> Registers:
    """A result of the tensor cores: pairs of a row in a thread, four threads a row, eight rows, and eight more."""
    register = [(0, 1), (8, 0)]
    lane = [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)]
    step = 8
    while step < instruction[1]:
        register.append((0, step))
        step *= 2
    for axis, first in ((1, instruction[1] * warps[1]), (0, 16 * warps[0])):
        step = first
        while step < shape[axis]:
            register.append(_vector(axis, step, shape))
            step *= 2
    return Registers(tuple(register), tuple(lane))


def operand(index: int, warps: tuple[int, int], width: int, shape: tuple[int, int]) -> Registers:
    """An operand of mma.sync: [rows, k] for index 0, [k, columns] for 1; `width` neighbours of k in a thread."""
    along = 1 if index == 0 else 0  # the axis of k
    vector = lambda step, k: (step, 0) if (along == 0) == k else (0, step)  # noqa: E731
    register = [vector(bit, True) for bit in _bits(width)]
    lane = [vector(width, True), vector(2 * width, True), vector(1, False), vector(2, False), vector(4, False)]
    if index == 0:
        register.append(vector(8, False))
    register.append(vector(4 * width, True))
    step = 8 * width
    while step < shape[along]:
        register.append(vector(step, True))
        step *= 2
    step = (16 if index == 0 else 8) * warps[index]
    while step < shape[1 - along]:
        register.append(vector(step, False))
        step *= 2
    return Registers(tuple(register), tuple(lane))


def _element(layout: Registers, register: int, lane: int) -> Vector:
    found = (0,) * len(layout.lane[0])
    for basis, value in ((layout.register, register), (layout.lane, lane)):
        for i, vector in enumerate(basis):
            if value >> i & 1:
                found = tuple(one ^ other for one, other in zip(found, vector, strict=True))
    return found


def passes(layout: Registers, shared: Shared, shape: Vector, size: int, matrix: bool = False) -> tuple[int, int]:
    """(passes, passes at best) for all that a warp moves between registers and shared memory, elements of `size` bytes.

    A thread moves as many elements at once as are neighbours in memory, up to 16 bytes, whichever registers hold them. matrix: ldmatrix
    moves them, by eight rows of 16 bytes along memory's fastest dimension.
    """
    if not matrix:
        layout = Registers(tuple(sorted(layout.register, key=lambda vector: shared.offset(vector, shape))), layout.lane)
    offsets = [[shared.offset(_element(layout, r, lane), shape) * size for r in range(1 << len(layout.register))] for lane in range(32)]
    if matrix:
        groups = [{lane[r] // 16 * 16 for lane in offsets for r in (first, first + 1)} for first in range(0, len(offsets[0]), 2)]
        return sum(_busiest(rows, 16) for rows in groups), sum(-(-len(rows) // 8) for rows in groups)
    width = size
    while width < 16 and all(_runs(lane, width * 2, size) for lane in offsets):
        width *= 2
    together = 32 if width <= 4 else 128 // width
    groups = [
        {offsets[lane][first] for lane in range(group, group + together)}
        for first in range(0, len(offsets[0]), width // size)
        for group in range(0, 32, together)
    ]
    return sum(_busiest(starts, width) for starts in groups), len(groups)


def _runs(offsets: list[int], width: int, size: int) -> bool:
    """Whether `width` bytes at a time are neighbours in memory, in order, and aligned."""
    count = width // size
    if len(offsets) < count:
        return False
    return all(
        offsets[i] % width == 0 and offsets[i + j] == offsets[i] + j * size for i in range(0, len(offsets), count) for j in range(count)
    )


def _busiest(starts: set[int], width: int) -> int:
    """Different words in the bank that has the most, for accesses of `width` bytes."""
    words = {word for start in starts for word in range(start // 4, -(-(start + width) // 4))}
    banks = [0] * 32
    for word in words:
        banks[word % 32] += 1
    return max(banks)


_SIZES = {"f16": 2, "bf16": 2, "f32": 4, "i8": 1, "i16": 2, "i32": 4}
_LAYOUT = re.compile(r"^(#\w+) = #ttg\.(\w+)<\{(.*)\}>", re.MULTILINE)
_OPERATION = re.compile(r"ttg\.(local_alloc %|local_store|local_load|async_copy_global_to_local)")
_TENSOR = re.compile(r"tensor<((?:\d+x){2,})(?:!tt\.ptr<)?(\w+)>?, (#ttg\.dot_op<\{[^}]*\}>|#\w+)>")
_MEMORY = re.compile(r"<(?:\d+x)+\w+, (#\w+), #smem")


def accesses(ttgir: str) -> list[Access]:
    """Every move of a tensor between registers (or global memory) and shared memory in a kernel, in the order of its text.

    What the tensor cores read from shared memory themselves (wgmma) is free of conflicts by its layout, and exchanges between lanes that
    the compiler lays out later are not in this form. Raises ValueError for a layout that is not known.
    """
    layouts = {name: (kind, text) for name, kind, text in _LAYOUT.findall(ttgir)}
    found = []
    for line in ttgir.splitlines():
        operation = _OPERATION.search(line)
        tensor, memory = _TENSOR.search(line), _MEMORY.search(line)
        if not operation or not tensor or not memory:
            continue
        shape, size = tuple(map(int, tensor[1].rstrip("x").split("x"))), _SIZES[tensor[2]]
        shared = _shared(*layouts[memory[1]], size)
        matrix = "dot_op" in tensor[3] and size * _numbers(tensor[3], "kWidth")[0] == 4 and operation[1] == "local_load"
        needed, best = passes(_registers(tensor[3], layouts, shape), shared, shape, size, matrix)
        found.append(Access(f"{operation[1].rstrip(' %')} {tensor[1]}{tensor[2]}", needed, best))
    return found


def _numbers(text: str, name: str) -> tuple[int, ...]:
    found = re.search(rf"\b{name} = \[?([\d, ]*)", text)
    return tuple(int(x) for x in found[1].rstrip(", ").split(",")) if found and found[1].strip(", ") else ()


def _vectors(text: str, name: str) -> Basis:
    found = re.search(rf"\b{name} = \[((?:\[[\d, ]*\](?:, )?)*)\]", text)
    return tuple(tuple(int(x) for x in vector.split(",")) for vector in re.findall(r"\[([\d, ]+)\]", found[1])) if found else ()


def _shared(kind: str, text: str, size: int) -> Shared:
    if kind == "swizzled_shared":
        return Shared(_numbers(text, "order"), *(_numbers(text, name)[0] for name in ("vec", "perPhase", "maxPhase")))
    if kind == "nvmma_shared":
        width = _numbers(text, "swizzlingByteWidth")[0]
        order = (0, 1) if "transposed = true" in text else (1, 0)
        return Shared(order, 16 // size, 128 // width, width // 16, width // size) if width else Shared(order, 1, 1, 1)
    raise ValueError(f"shared layout {kind}")


def _registers(name: str, layouts: dict[str, tuple[str, str]], shape: Vector) -> Registers:
    if name.startswith("#ttg.dot_op"):
        kind, text = layouts[re.search(r"parent = (#\w+)", name)[1]]
        width = _numbers(name, "kWidth")[0]
        if kind != "nvidia_mma":
            raise ValueError(f"operand of {kind}")
        index = _numbers(name, "opIdx")[0]
        warps = _numbers(text, "warpsPerCTA")
        return operand(index, warps, width, shape)
    kind, text = layouts[name]
    if kind == "blocked":
        return blocked(*(_numbers(text, part) for part in ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")), shape)
    if kind == "linear":
        return Registers(_vectors(text, "register"), _vectors(text, "lane"))
    if kind == "nvidia_mma":
        return tensor_core(_numbers(text, "warpsPerCTA"), _numbers(text, "instrShape")[:2], shape)
    raise ValueError(f"register layout {kind}")
