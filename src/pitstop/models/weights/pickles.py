"""Reads pickles of one numpy array, or of one 8-bit matrix with scales, and nothing else: nothing in the file can run.

A pickle is a program. Python's own reader runs it with whatever functions it names; here a program may use only the steps that such a file
needs, and name only the classes below, which are stand-ins of ours: numpy's are not safe against made-up state either.
"""

from __future__ import annotations

import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pitstop.errors import WeightsError

_STEPS = frozenset(
    ("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE",
     "SHORT_BINUNICODE", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT",
     "SETITEM", "SETITEMS", "GLOBAL", "STACK_GLOBAL", "NEWOBJ", "REDUCE", "BUILD", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET",
     "LONG_BINGET")
)  # fmt: skip
_DTYPES = {"f4": np.float32, "f2": np.float16, "i1": np.int8}
_MOST_STEPS = 1000
"""Of one file: a matrix with scales needs under 100."""
_LARGEST_TUPLE = 50
"""With all that lies in the tuples within it: an array's state needs about ten. A tuple that holds another many times, which holds a third
so, takes few bytes in a file and endless time of those that look at it."""
_LONGEST_NAME = 256


class _Refused(Exception):
    pass


class Dtype:
    """Stands in for numpy.dtype."""

    __slots__ = ("code",)

    def __init__(self, code: object = None, align: object = False, copy: object = True) -> None:
        if code is not Bfloat16 and (not isinstance(code, str) or code not in _DTYPES):
            raise _Refused(f"values of the type {_short(code if isinstance(code, str) else type(code).__name__)}")
        self.code = code

    def __setstate__(self, state: object) -> None:
        byte_order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if byte_order not in ("<", "|", "="):
            raise _Refused("values of another byte order")


class Bfloat16:
    """Stands in for ml_dtypes.bfloat16."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise _Refused("a state for a type")


class Ndarray:
    """Stands in for numpy.ndarray: `value` once its state is set. bfloat16 is widened to fp32, exactly."""

    __slots__ = ("value",)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise _Refused("an array without shape, type and bytes")
        _, shape, dtype, fortran, data = state
        if not isinstance(shape, tuple) or not all(type(size) is int and 0 <= size < 2**40 for size in shape) or len(shape) > 4:
            raise _Refused("an array without a sound shape")
        if not isinstance(dtype, Dtype) or not hasattr(dtype, "code") or not isinstance(data, bytes) or type(fortran) is not bool:
            raise _Refused("an array without type and bytes")
        brief = dtype.code is Bfloat16
        stored = np.dtype("<u2") if brief else np.dtype(_DTYPES[dtype.code]).newbyteorder("<")
        if len(data) != math.prod(shape) * stored.itemsize:
            raise _Refused(f"an array of shape {list(shape)} in {len(data)} bytes")
        value = np.frombuffer(data, stored).reshape(shape, order="F" if fortran else "C")
        self.value = (value.astype("<u4") << 16).view("<f4") if brief else value


class Reconstruct:
    """Stands in for numpy's function that makes an array without a state."""

    __slots__ = ()

    def __call__(self, kind: object, shape: object, code: object) -> Ndarray:
        if kind is not Ndarray:
            raise _Refused("an array of another class")
        return Ndarray()

    def __setstate__(self, state: object) -> None:
        raise _Refused("a state for a function")


class QuantizedWeight8bit:
    """An int8 matrix and its scales, as the class of this name in the code that came with Grok-1 holds them."""

    __slots__ = ("scales", "weight")

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict) or state.keys() != {"weight", "scales"}:
            raise _Refused("8-bit weights without weight and scales")
        weight, scales = (_array(state[name]) for name in ("weight", "scales"))
        if weight.dtype != np.int8 or scales.dtype not in (np.float32, np.float16) or weight.ndim != scales.ndim:
            raise _Refused(f"8-bit weights of {weight.dtype}{list(weight.shape)} with scales {scales.dtype}{list(scales.shape)}")
        if not all(few and size % few == 0 for size, few in zip(weight.shape, scales.shape, strict=True)):
            raise _Refused(f"scales of shape {list(scales.shape)}, which do not divide {list(weight.shape)}")
        self.weight, self.scales = weight, scales


_NAMES: dict[tuple[str, str], object] = {
    ("numpy", "dtype"): Dtype,
    ("numpy", "ndarray"): Ndarray,
    ("numpy.core.multiarray", "_reconstruct"): Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): Reconstruct(),
    ("ml_dtypes", "bfloat16"): Bfloat16,
    ("__main__", "QuantizedWeight8bit"): QuantizedWeight8bit,
    ("model", "QuantizedWeight8bit"): QuantizedWeight8bit,
}


class _Steps(dict):
    """What carries out each step, by its code."""

    left = _MOST_STEPS

    def __getitem__(self, code: int) -> object:
        self.left -= 1
        if self.left < 0:
            raise _Refused(f"more than {_MOST_STEPS} steps")
        if code not in self:
            raise _Refused(f"the step {chr(code)!r}, which no weights need")
        return super().__getitem__(code)


class _Unpickler(pickle._Unpickler):
    """In Python, for its table of steps, and because the one in C makes room for as many remembered objects as a file asks for."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        known = {ord(step.code): step.name for step in pickletools.opcodes}
        steps = {code: step for code, step in pickle._Unpickler.dispatch.items() if known[code] in _STEPS}
        self.dispatch = _Steps({code: _bounded(step) if "TUPLE" in known[code] else step for code, step in steps.items()})

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _NAMES:
            raise _Refused(f"{_short(f'{module}.{name}')}, which no weights need")
        return _NAMES[module, name]


def read_pickle(path: Path) -> np.ndarray | QuantizedWeight8bit:
    """The array (int8, fp16, fp32; bfloat16 as fp32) or the 8-bit weights in the file, which are little endian.

    Raises WeightsError for anything else; nothing that the file names is imported, called or changed.
    """
    try:
        with path.open("rb") as file:
            found = _Unpickler(file).load()
            return found if isinstance(found, QuantizedWeight8bit) else _array(found)
    except _Refused as refusal:
        raise WeightsError(path, f"refused: it holds {refusal}") from None
    except OSError as error:
        raise WeightsError(path, f"cannot be read: {error.strerror}") from error
    except Exception as error:  # a program that makes no sense can fail in any way
        raise WeightsError(path, f"not a sound pickle of weights ({type(error).__name__}); fetch it again") from error


def _array(value: object) -> np.ndarray:
    if not isinstance(value, Ndarray) or not hasattr(value, "value"):
        raise _Refused(f"{_short(type(value).__name__)} where an array belongs")
    return value.value


def _bounded(step: Callable[[pickle._Unpickler], None]) -> Callable[[pickle._Unpickler], None]:
    """The step, which makes a tuple, for small ones only. So counting it again takes no time."""

    def make(reader: pickle._Unpickler) -> None:
        step(reader)
        if _count(reader.stack[-1]) > _LARGEST_TUPLE:
            raise _Refused(f"a tuple of more than {_LARGEST_TUPLE} parts")

    return make


def _count(value: object) -> int:
    """The parts of a tuple, those of tuples within it and itself."""
    return 1 + sum(map(_count, value)) if isinstance(value, tuple) else 1


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."
