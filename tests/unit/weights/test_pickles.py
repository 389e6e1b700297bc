"""The restricted unpickler: arrays and 8-bit weights come back; whatever else a pickle asks for is refused, and does not happen."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitstop.errors import WeightsError
from pitstop.models.weights import pickles
from pitstop.models.weights.pickles import QuantizedWeight8bit, read_pickle


@dataclass
class Weights:
    weight: Any
    scales: Any


def named(data: bytes, module: str = "__main__") -> bytes:
    """The pickled class, under the name that it has in checkpoints."""
    here = text(__name__) + b"\x94" + text("Weights")
    assert here in data
    data = data.replace(here, text(module) + b"\x94" + text("QuantizedWeight8bit"))
    return data[:2] + data[11:]  # the frame's length no longer fits


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def glob(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


def read(tmp_path: Path, data: bytes) -> Any:
    (tmp_path / "leaf").write_bytes(data)
    return read_pickle(tmp_path / "leaf")


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
WEIGHT, SCALES = np.arange(-12, 12, dtype=np.int8).reshape(2, 4, 3), np.ones((2, 2, 3), np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("protocol", [3, 4])
def test_arrays_come_back(tmp_path, dtype, protocol):
    for value in (ARRAY.astype(dtype), np.asfortranarray(ARRAY.astype(dtype)), np.zeros((0, 3), dtype), np.ones(40000, dtype)):
        found = read(tmp_path, pickle.dumps(value, protocol))
        assert found.dtype == dtype
        assert np.array_equal(found, value)


def test_numpy_under_its_old_name(tmp_path):
    data = pickle.dumps(ARRAY, 4).replace(text("numpy._core.multiarray"), text("numpy.core.multiarray"))
    assert np.array_equal(read(tmp_path, data[:2] + data[11:]), ARRAY)


def test_bfloat16_becomes_fp32(tmp_path):
    """numpy itself has none: the type is another library's class."""
    data = pickle.dumps(np.array([0x3F80, 0xC000, 0x7F80], "<u2"), 4)
    found = read(tmp_path, (data[:2] + data[11:]).replace(text("u2"), glob("ml_dtypes", "bfloat16")))
    assert found.dtype == np.float32
    assert found.tolist() == [1.0, -2.0, np.inf]


@pytest.mark.parametrize("module", ["__main__", "model"])
def test_8_bit_weights_come_back(tmp_path, module):
    found = read(tmp_path, named(pickle.dumps(Weights(WEIGHT, SCALES), 4), module))
    assert isinstance(found, QuantizedWeight8bit)
    assert np.array_equal(found.weight, WEIGHT)
    assert np.array_equal(found.scales, SCALES)


# ---- attacks: each would leave the file MARK behind


class Call:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple:
        return self.call


class Build(Call):
    """A call whose result is given a state."""

    def __reduce__(self) -> tuple:
        return (*self.call, {"weight": 1})


def attacks(mark: Path) -> dict[str, bytes]:
    write, code = f"touch {mark}", f"open({str(mark)!r}, 'w').close()"
    inner = pickle.dumps(Call(os.system, write))
    hidden = Weights(ARRAY, Call(os.system, write))
    old = b"cposix\nsystem\n(V" + write.encode() + b"\ntR."
    return {
        "os.system": inner,
        "os.system, old protocol": old,
        "builtins.eval": pickle.dumps(Call(eval, code)),
        "builtins.exec": pickle.dumps(Call(exec, code)),
        "subprocess": pickle.dumps(Call(subprocess.call, ["touch", str(mark)])),
        "subprocess.Popen": pickle.dumps(Call(subprocess.Popen, ["touch", str(mark)])),
        "nested pickle": pickle.dumps(Call(pickle.loads, inner)),
        "numpy's own loader": pickle.dumps(Call(np.load, str(mark), None, True)),
        "getattr": b"\x80\x04" + glob("builtins", "getattr") + b".",
        "an import": b"\x80\x04" + glob("builtins", "__import__") + text("os") + b"\x85R.",
        "a dotted name": b"\x80\x04" + glob("numpy", "ndarray.__reduce__") + b".",
        "a dotted module": b"\x80\x04" + glob("numpy.core.multiarray", "_reconstruct.__globals__") + b".",
        "inside the weights": named(pickle.dumps(hidden, 4)),
        "inside an array's shape": pickle.dumps([Call(os.system, write)]),
        "a step of protocol 0, INST": b"(V" + write.encode() + b"\niposix\nsystem\n.",
        "OBJ": b"(" + b"cposix\nsystem\nV" + write.encode() + b"\no.",
        "a persistent id": b"Pid\n.",
        "an extension": b"\x82\x01.",
        "memo: a name kept and called later": b"\x80\x04" + glob("posix", "system") + b"\x94h\x00" + text(write) + b"\x85R.",
        "memo: a name overwritten": b"\x80\x04"
        + glob("numpy", "dtype")
        + b"q\x00"
        + glob("posix", "system")
        + b"q\x00h\x00"
        + text(write)
        + b"\x85R.",
        "memo: names from memory": b"\x80\x04" + text("posix") + b"\x94" + text("system") + b"\x94h\x00h\x01\x93" + text(write) + b"\x85R.",
        "a state for a call's result": pickle.dumps(Build(os.system, write)),
    }


@pytest.mark.parametrize("attack", attacks(Path("mark")))
def test_an_attack_is_refused_and_does_not_happen(tmp_path, attack):
    mark = tmp_path / "mark"
    with pytest.raises(WeightsError, match=r"leaf: (refused: it holds|not a sound pickle)"):
        read(tmp_path, attacks(mark)[attack])
    assert not mark.exists()


REAL = ("os.system", "os.system, old protocol", "builtins.eval", "subprocess", "nested pickle", "memo: a name kept and called later",
        "memo: a name overwritten", "memo: names from memory")  # fmt: skip


@pytest.mark.parametrize("attack", REAL)
def test_the_attacks_work_where_nothing_stops_them(tmp_path, attack):
    """With Python's own reader: else the tests above would prove nothing."""
    pickle.loads(attacks(tmp_path / "mark")[attack])
    assert (tmp_path / "mark").exists()


STATES = {
    "another byte order": pickle.dumps(ARRAY.astype(">f4"), 4),
    "objects": pickle.dumps(np.array([None]), 4),
    "a structure": pickle.dumps(np.zeros(2, [("a", "f4")]), 4),
    "complex numbers": pickle.dumps(np.zeros(2, complex), 4),
    "a list": pickle.dumps([ARRAY], 4),
    "a dictionary": pickle.dumps({"weight": ARRAY}, 4),
    "a number": pickle.dumps(3, 4),
    "text": pickle.dumps("weights", 4),
    "an array without a state": b"\x80\x04"
    + glob("numpy.core.multiarray", "_reconstruct")
    + glob("numpy", "ndarray")
    + b"K\0\x85C\x01b\x87R.",
    "a class": b"\x80\x04" + glob("numpy", "ndarray") + b".",
    "a state for a class": b"\x80\x04" + glob("numpy", "dtype") + b"}b.",
    "a state for a function": b"\x80\x04" + glob("numpy.core.multiarray", "_reconstruct") + b"}b.",
    "attributes for a function": b"\x80\x04" + glob("numpy.core.multiarray", "_reconstruct") + b"N}" + text("__call__") + b"Ns\x86b.",
    "weights without scales": named(pickle.dumps(Weights(WEIGHT, None), 4)),
    "weights that are no int8": named(pickle.dumps(Weights(ARRAY, ARRAY), 4)),
    "scales that do not divide": named(pickle.dumps(Weights(WEIGHT, np.ones((2, 3, 3), np.float32)), 4)),
    "scales of another rank": named(pickle.dumps(Weights(WEIGHT, np.ones(3, np.float32)), 4)),
    "no scales at all": named(pickle.dumps(Weights(WEIGHT, np.ones((2, 0, 3), np.float32)), 4)),
    "a file cut short": pickle.dumps(ARRAY, 4)[:-9],
    "an empty file": b"",
    "text that is no pickle": b"<!doctype html>",
    "a memo of many gigabytes": b"\x80\x04Nr\xff\xff\xff\xff.",
    "bytes that are not there": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".",
    "a frame that is not there": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b".",
    "tuples in tuples": b"\x80\x04)" + b"\x85" * 10**6 + b".",
    "an unhashable key": b"\x80\x04}}Ns.",
    "a name that was never kept": b"\x80\x04h\x07.",
    "an endless number": b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b".",
}


def doubled(times: int) -> bytes:
    """A tuple that holds a tuple twice, which holds another twice, and so on."""
    return text("a") * 2 + b"\x86\x94" + b"".join(b"h" + bytes([i]) + b"\x86\x94" for i in range(times))


FEW_BYTES_MUCH_TIME = {
    "a key": b"\x80\x04}" + doubled(20) + b"Ns.",
    "keys": b"\x80\x04}(" + doubled(20) + b"Nu.",
    "the name of a type": b"\x80\x04" + glob("numpy", "dtype") + doubled(20)[:-1] + b"\x85R.",
    "wide ones": b"\x80\x04}" + b")\x94" + b"".join(b"(" + b"h" + bytes([i]) + b"t\x94" for i in range(60)) + b"Ns.",
}
"""Of tuples that hold each other: each level more takes a few bytes and twice the time."""


@pytest.mark.parametrize("what", FEW_BYTES_MUCH_TIME)
def test_tuples_that_hold_much_are_not_looked_at(tmp_path, what):
    with pytest.raises(WeightsError, match="a tuple of more than 50 parts"):
        read(tmp_path, FEW_BYTES_MUCH_TIME[what])


@pytest.mark.parametrize("what", STATES)
def test_anything_else_is_refused_in_a_line(tmp_path, what):
    with pytest.raises(WeightsError) as caught:
        read(tmp_path, STATES[what])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_lie_about_the_size_is_found(tmp_path):
    data = pickle.dumps(ARRAY, 4).replace(b"K\x02K\x03", b"K\x02K\x7f")
    with pytest.raises(WeightsError, match=r"an array of shape \[2, 127\] in 24 bytes"):
        read(tmp_path, data)


def test_nothing_that_is_read_changes_the_reader(tmp_path):
    before = {name: dict(vars(pickles)[name].__dict__) for name in ("Dtype", "Ndarray", "Reconstruct", "QuantizedWeight8bit", "Bfloat16")}
    for data in [*STATES.values(), *attacks(tmp_path / "mark").values()]:
        with pytest.raises(WeightsError):
            read(tmp_path, data)
    assert {name: dict(vars(pickles)[name].__dict__) for name in before} == before
    assert np.array_equal(read(tmp_path, pickle.dumps(ARRAY, 4)), ARRAY)
