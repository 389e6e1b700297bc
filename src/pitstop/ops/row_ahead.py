"""The kernels that work row by row, as they are launched for a model's shapes: compiled ahead of time, and what speaks against that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pitstop.ops import ahead
from pitstop.ops.activation import triton as activation
from pitstop.ops.ahead import Compiled
from pitstop.ops.attention import cache
from pitstop.ops.attention.layout import Layout
from pitstop.ops.chip import Chip
from pitstop.ops.norm import triton as norm
from pitstop.ops.rope import triton as rope
from pitstop.ops.sample import triton as sample


class Launch(NamedTuple):
    """types: Triton's, of the arguments that are no constants. Pointers are multiples of 16, of numbers nothing is known. wide: the share
    of bytes that are to be loaded 16 at a time."""

    kernel: object
    types: Mapping[str, str]
    constants: Mapping[str, int | bool | float | str]
    options: Mapping[str, int | bool]
    wide: float = 0.8

    @property
    def warps(self) -> int:
        """Of a block."""
        return self.options["num_warps"]


def launches(hidden: int, features: int, head_dim: int, vocab: int, layouts: Mapping[str, Layout]) -> dict[str, Launch]:
    """By name, of a model with `hidden` numbers a row, gated products of `features`, and caches of these layouts."""
    return _norms(hidden, head_dim) | _activations(features, vocab) | _rotations(head_dim) | _choices(vocab) | _caches(head_dim, layouts)


def compiled(launch: Launch, chip: Chip) -> Compiled:
    pointers = {name for name, kind in launch.types.items() if kind.startswith("*")}
    return ahead.compile(launch.kernel, launch.types, launch.constants, chip.arch, launch.options, pointers)


def objections(found: Compiled, launch: Launch, chip: Chip) -> list[str]:
    """What is wrong with it, in words; nothing if it is as it should be."""
    wrong = ahead.misfits(found, chip, launch.wide)
    if ahead.resident(found, launch, chip) < 1:
        wrong.append(f"{found.registers} registers a thread are more than an SM has")
    return wrong


def _types(pointers: Mapping[str, str], numbers: str) -> dict[str, str]:
    """Pointers to fp32 if nothing else is said, 32-bit integers."""
    return {name: f"*{kind or 'fp32'}" for name, kind in pointers.items()} | dict.fromkeys(numbers.split(), "i32")


def _norms(hidden: int, head_dim: int) -> dict[str, Launch]:
    from pitstop.ops.norm.triton_kernels import normalise

    pointers = dict.fromkeys(("x_at", "y_at", "weight_at", "bias_at", "total_at", "out_at"), "")
    types = _types(pointers, "x_row y_row rows heads") | {"eps": "fp32"}
    found = {}
    for name, width, add, centre in (
        ("rms_norm", hidden, False, False),
        ("rms_norm", head_dim, False, False),
        ("add_rms_norm", hidden, True, False),
        ("layer_norm", hidden, False, True),
    ):
        found[f"{name} of {width}"] = Launch(normalise, types, norm.constants(width, add, centre), norm.options(width))
    return found


def _activations(features: int, vocab: int) -> dict[str, Launch]:
    from pitstop.ops.activation.triton_kernels import activate

    types = _types({"x_at": "", "out_at": ""}, "x_row rows") | {"cap": "fp32"}
    found = {}
    for kind, gated in (
        ("silu", True),
        ("gelu_tanh", True),
        ("gelu_erf", True),
        ("gelu_tanh", False),
        ("gelu_erf", False),
        ("softcap", False),
    ):
        width = vocab if kind == "softcap" else features
        name = f"{kind}_mul" if gated else kind
        found[name] = Launch(activate, types, activation.constants(width, kind, gated), activation.options(width))
    return found


def _rotations(head_dim: int) -> dict[str, Launch]:
    from pitstop.ops.rope.triton_kernels import hadamard, rotate

    types = _types({"x_at": "", "positions": "i32", "cos_at": "", "sin_at": "", "out_at": ""}, "x_row heads context")
    found = {}
    for name, interleaved in (("rotate, halves", False), ("rotate, neighbours", True)):
        # Heads come 16 bytes at a time; a thread's cosines are fewer, and the same for all heads.
        found[name] = Launch(rotate, types, rope.rotate_constants(head_dim, interleaved), rope.options(head_dim), wide=0.6)
    if not head_dim & (head_dim - 1):
        types = _types({"x_at": "", "out_at": ""}, "x_row vectors heads")
        found["hadamard"] = Launch(hadamard, types, rope.hadamard_constants(head_dim), rope.options(head_dim))
    return found


def _choices(vocab: int) -> dict[str, Launch]:
    from pitstop.ops.sample.draw_kernels import drawn
    from pitstop.ops.sample.triton_kernels import largest

    types = _types({"logits_at": "", "keys_at": "i64", "found_at": "i64"}, "row")
    found = {}
    for turn, count, first in (("logits", vocab, True), ("keys", sample.COLUMNS, False)):
        constants = sample.largest_constants(vocab, count, first)
        found[f"greedy, {turn}"] = Launch(largest, types, constants, sample.options(constants["COLUMNS"]))
    types = _types({"logits_at": "", "draws_at": "fp64", "keys_at": "i64", "ids_at": "i64"}, "row")
    constants = sample.drawn_constants(vocab)
    return found | {"draw": Launch(drawn, types, constants, sample.options(constants["COLUMNS"]))}


def _caches(head_dim: int, layouts: Mapping[str, Layout]) -> dict[str, Launch]:
    from pitstop.ops.attention.cache_kernels import append, seal

    types = _types({"k_at": "", "v_at": "", "tails": "fp16", "items": "i32"}, "k_row v_row kv_heads")
    found = {"append": Launch(append, types, cache.append_constants(head_dim), cache.OPTIONS)}
    pointers = {"tails": "fp16", "pages8": "u8", "pages16": "fp16", "items": "i32", "table": "i32"}
    for name, layout in layouts.items():
        constants = cache.seal_constants(head_dim, layout)
        found[f"seal {name}"] = Launch(seal, _types(pointers, "page_eighths kv_heads"), constants, cache.OPTIONS)
    return found
