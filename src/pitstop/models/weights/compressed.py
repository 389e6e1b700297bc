"""Integer weights in the layout of the compressed-tensors library: what config.json says of them, and their values. Imports no torch.

A weight of 4 or 8 bits is w = (value - zero point) · scale, scale and zero point by output row and group of inputs. Beside X.weight_scale
lies X.weight (int8), or X.weight_packed: the values + 2^(bits - 1), unsigned, in int32 words from the lowest bits on along the inputs, and
X.weight_shape [2]. X.weight_zero_point, where there is one, is int8, or packed in the same way along the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pitstop.errors import WeightsError
from pitstop.models.keys import Keys
from pitstop.models.weights.shards import Entry
from pitstop.models.weights.tensor import RawTensor

KEY = "quantization_config"
_FORMATS = dict.fromkeys(("pack-quantized", "int-quantized", "naive-quantized", "mixed-precision"), True)
_STRATEGIES = dict.fromkeys(("group", "channel", "tensor"), True)
_ORDERS = (None, False, "weight", "static")
"""Values of actorder that leave the groups in the order of the inputs."""
_HARMLESS = frozenset({"global_compression_ratio", "ignore", "quantization_status", "version"})
_NEUTRAL: dict[str, Any] = {"sparsity_config": {}, "transform_config": {}}
_HARMLESS_OF_WEIGHTS = frozenset({"group_size", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"})
_GROUP = 32
"""Inputs that share a scale in the kernels."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What config.json states: the widths of values in bits, and whether it wants activations rounded as well."""

    bits: frozenset[int]
    rounds_activations: bool


def read_quantisation(keys: Keys) -> Quantisation | None:
    """None where config.json states none. Raises WeightsError naming the key whose value is not honoured."""
    stated = keys.get(KEY)
    if stated is None:
        return None
    inner = _inner(keys, KEY, stated)
    if inner.get("quant_method") != "compressed-tensors":
        raise inner.refuse("quant_method", "is not honoured; we read compressed-tensors")
    inner.choice("format", _FORMATS, "")
    groups = inner.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise inner.refuse("config_groups", "names no group")
    under = inner.within("config_groups", groups)
    schemes = [_read_group(_inner(under, name, group)) for name, group in groups.items()]
    inner.refuse_unread(_HARMLESS, _NEUTRAL)
    return Quantisation(frozenset(bits for bits, _ in schemes), any(rounds for _, rounds in schemes))


def _inner(keys: Keys, name: str, stated: object) -> Keys:
    if not isinstance(stated, dict):
        raise keys.refuse(name, "is no object")
    return keys.within(name, stated)


def _read_group(group: Keys) -> tuple[int, bool]:
    """Bits of the weights, and whether activations are to be rounded."""
    group.get("targets")
    group.choice("format", _FORMATS, "pack-quantized")
    weights = _inner(group, "weights", group.get("weights"))
    weights.choice("type", {"int": True}, "int")
    bits = weights.integer("num_bits")
    if bits not in (4, 8):
        raise weights.refuse("num_bits", "is not honoured; we have 4 and 8")
    if not weights.flag("symmetric", True) and bits == 8:
        raise weights.refuse("symmetric", "is not honoured for 8 bits; choose a checkpoint without zero points, or of 4 bits")
    weights.choice("strategy", _STRATEGIES, "group" if weights.get("group_size") else "tensor")
    if weights.get("actorder") not in _ORDERS:
        raise weights.refuse("actorder", "is not honoured: groups that are scattered over the inputs")
    weights.refuse_unread(_HARMLESS_OF_WEIGHTS, {"dynamic": False})
    rounds = _rounds_activations(group)
    group.refuse_unread()
    return bits, rounds


def _rounds_activations(group: Keys) -> bool:
    stated = group.get("input_activations")
    if stated is None:
        return False
    activations = _inner(group, "input_activations", stated)
    activations.choice("type", {"int": True}, "int")
    if activations.get("num_bits") != 8:
        raise activations.refuse("num_bits", "is not honoured; we have 8")
    if activations.get("dynamic") is not True:
        raise activations.refuse("dynamic", "is not honoured: scales fixed beforehand")
    return True


def join(entries: Mapping[str, Entry], quantisation: Quantisation) -> dict[str, Entry | IntegerEntry]:
    """The entries, those that make up one integer weight joined under the weight's name.

    Raises WeightsError naming the tensor that is missing or does not fit.
    """
    joined: dict[str, Entry | IntegerEntry] = dict(entries)
    for name, values in entries.items():
        packed = name.endswith(".weight_packed")
        if not packed and not (name.endswith(".weight") and values.kind == "I8"):
            continue
        weight = name.removesuffix("_packed")
        if f"{weight}_g_idx" in entries:
            raise WeightsError(values.file, "groups that are scattered over the inputs are not honoured", f"{weight}_g_idx")
        del joined[name]
        parts = {part: joined.pop(f"{weight}_{part}", None) for part in ("scale", "zero_point", *(["shape"] if packed else []))}
        for part in ("scale", "shape"):
            if part in parts and parts[part] is None:
                raise WeightsError(values.file, "is missing; fetch the folder again", f"{weight}_{part}")
        joined[weight] = _integers(weight, values, parts, quantisation)
    return joined


def _integers(name: str, values: Entry, parts: dict[str, Entry | None], quantisation: Quantisation) -> IntegerEntry:
    stated = parts.get("shape")
    shape = values.shape if stated is None else tuple(int(size) for size in stated.integers(f"{name}_shape").reshape(-1))
    fits = len(shape) == len(values.shape) == 2 and values.shape[0] == shape[0]
    bits = 0 if not fits else 8 if stated is None else values.shape[1] * 32 // max(shape[1], 1)
    if bits not in quantisation.bits | ({8} if stated is None else set()):
        raise WeightsError(
            values.file, f"has shape {list(values.shape)}, which holds no {list(shape)} of {sorted(quantisation.bits)} bits", name
        )
    scale = parts["scale"]
    groups = 1 if math.prod(scale.shape) in (1, shape[0]) else scale.shape[-1]
    if math.prod(scale.shape) not in (1, shape[0] * groups) or shape[1] % groups:
        raise WeightsError(scale.file, f"has shape {list(scale.shape)}, which does not fit a weight of {list(shape)}", f"{name}_scale")
    entry = IntegerEntry(values.file, shape, bits, groups, values, scale, parts["zero_point"])
    if zero := entry.zero:
        rows = entry.scaled if zero.kind == "I8" else math.ceil(entry.scaled * bits / 32)
        if math.prod(zero.shape) != rows * groups or (groups > 1 and zero.shape[-1] != groups):
            raise WeightsError(zero.file, f"has shape {list(zero.shape)}, which fits no scales {list(scale.shape)}", f"{name}_zero_point")
    return entry


@dataclass(frozen=True, slots=True)
class IntegerEntry:
    """A weight [out, in] of integers, and where its parts lie; looks like an Entry."""

    file: Path
    shape: tuple[int, ...]
    bits: int
    groups: int
    values: Entry
    scale: Entry
    zero: Entry | None

    @property
    def stored(self) -> str:
        return f"INT{self.bits} by {'rows' if self.groups == 1 else self.shape[1] // self.groups}"

    @property
    def scaled(self) -> int:
        """Rows that have a scale of their own: all, or one for all."""
        return math.prod(self.scale.shape) // self.groups

    def map(self, name: str) -> RawTensor:
        """In a form that the kernels have: 4 bits as Q4_1, or Q4_F where fp16 cannot hold scale or minimum; 8 bits as I8, or in groups as
        Q8_0. What none of these holds exactly becomes F32.
        """
        out, size = self.shape[0], self.shape[1] // self.groups
        scales = np.broadcast_to(self.scale.map(f"{name}_scale").dequantize().reshape(-1, self.groups), (out, self.groups))
        codes, zeros = self._codes(name), self._zeros(f"{name}_zero_point")
        if self.bits == 8 and self.groups == 1:
            signed = (codes - zeros).astype(np.int8)
            return RawTensor(name, "I8", self.shape, np.concatenate([np.array(scales).view(np.uint8), signed.view(np.uint8)], axis=1))
        if size % _GROUP or (form := _numbers(self.bits, scales, zeros)) is None:
            values = (codes.reshape(out, self.groups, size) - zeros[..., None]) * scales[..., None]
            return RawTensor(name, "F32", self.shape, values.reshape(self.shape))
        kind, numbers = form
        if self.bits == 8:
            packed = (codes - np.repeat(zeros, size, axis=1)).astype(np.int8).view(np.uint8).reshape(-1, _GROUP)
        else:
            low, high = codes.astype(np.uint8).reshape(-1, 2, 16).transpose(1, 0, 2)
            packed = low | high << 4
        columns = [np.repeat(part, size // _GROUP, axis=1).reshape(-1, 1).view(np.uint8) for part in numbers]
        return RawTensor(name, kind, self.shape, np.concatenate([*columns, packed], axis=1).reshape(out, -1))

    def _codes(self, name: str) -> np.ndarray:
        """[out, in] int16, what `_zeros` is to be taken from."""
        stored = self.values.integers(name)
        if stored.dtype == np.int8:
            return stored.astype(np.int16)
        unpacked = _unpack(np.ascontiguousarray(stored), self.bits)
        return unpacked[:, : self.shape[1]].astype(np.int16)

    def _zeros(self, name: str) -> np.ndarray:
        """[out, groups] fp32, in the sense of the values as stored. Raises WeightsError for zero points of 8 bits."""
        out, middle = self.shape[0], 0 if self.values.kind == "I8" else 1 << (self.bits - 1)
        if self.zero is None:
            return np.full((out, self.groups), middle, np.float32)
        stored = self.zero.integers(name).reshape(-1, self.groups)
        if stored.dtype == np.int8:
            zeros = stored.astype(np.float32) + middle
        else:
            zeros = _unpack(np.ascontiguousarray(stored.T), self.bits)[:, : self.scaled].T.astype(np.float32)
        if self.bits == 8 and (zeros != middle).any():
            raise WeightsError(self.zero.file, "zero points of 8 bits are not honoured", name)
        return np.broadcast_to(zeros, (out, self.groups))


def _numbers(bits: int, scales: np.ndarray, zeros: np.ndarray) -> tuple[str, list[np.ndarray]] | None:
    """A kind that holds scales [out, groups] and, of 4 bits, minima exactly, and its numbers before the codes. None where there is none."""
    half = _halves(scales)
    if bits == 8:
        return None if half is None else ("Q8_0", [half])
    minima = -(zeros * scales)
    half_minima = _halves(minima)
    return ("Q4_F", [scales, minima]) if half is None or half_minima is None else ("Q4_1", [half, half_minima])


def _halves(values: np.ndarray) -> np.ndarray | None:
    """The values in fp16, where that holds them exactly."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return half if np.array_equal(half, values) else None


def _unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """int32 [rows, n] → unsigned [rows, n · 32 / bits], from the lowest bits on."""
    octets = words.view(np.uint8)
    return octets if bits == 8 else np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(words), -1)
