"""Planes of a page in plain torch: the readable truth of layout.py. Values to codes and ranges, codes to bytes, and back."""

from __future__ import annotations

import torch

from pitstop.ops.attention.layout import PARTS, Layout, Plane
from pitstop.types import SEGMENT


def quantize(x: torch.Tensor, plane: Plane, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [heads, rows, columns] fp32, `tokens` the axis (1 or 2) of tokens → (codes uint8 like x, scales [heads, n], zeros [heads, m] fp16).

    Absolute: zero = fp16(least), scale = fp16((largest - least) / levels), code = (x - zero) * (1 / scale) rounded to nearest even and
    clamped, all in fp32; 0 where the scale is 0. Differences: zero = fp16 of the first token, scale = fp16(largest |difference| / 127).
    """
    if plane.coding != "absolute":
        return _differences(x, plane, tokens)
    over = {"channel": tokens, "token": 3 - tokens, "segment": (1, 2)}[plane.ranges]
    levels = 2**plane.bits - 1
    least, largest = x.amin(over, keepdim=True) + 0.0, x.amax(over, keepdim=True) + 0.0  # of zeros of either sign, +0
    zeros, scales = least.half(), ((largest - least) / levels).half()
    codes = _rounded((x - zeros.float()) * _inverse(scales.float()), 0, levels)
    return codes.to(torch.uint8), scales.flatten(1), zeros.flatten(1)


def _inverse(scales: torch.Tensor) -> torch.Tensor:
    return torch.where(scales > 0, 1 / scales, 0.0)


def _rounded(x: torch.Tensor, low: int, high: int) -> torch.Tensor:
    return torch.round(x).nan_to_num(low).clamp(low, high)


def _differences(x: torch.Tensor, plane: Plane, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = x.transpose(1, tokens)  # [heads, tokens, channels]
    zeros = rows[:, 0].half()
    steps = rows.diff(dim=1)
    scales = (steps.abs().amax((1, 2)) / 127).half()[:, None]
    inverse = _inverse(scales.float())
    codes = torch.full(rows.shape, 128, dtype=torch.int32)
    sums = torch.zeros_like(zeros, dtype=torch.int32)  # of the codes so far: what is stored is zero + scale * sum
    for t in range(1, SEGMENT):
        before = zeros.float() + scales.float() * sums if plane.coding == "closed" else rows[:, t - 1]
        step = _rounded((rows[:, t] - before) * inverse, -127, 127).int()
        codes[:, t] = step + 128
        sums += step
    return codes.to(torch.uint8).transpose(1, tokens), scales, zeros


def dequantize(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, plane: Plane, tokens: int) -> torch.Tensor:
    """The values that codes [heads, rows, columns] stand for, fp64."""
    channels = (len(codes), 1, -1) if tokens == 1 else (len(codes), -1, 1)
    each_token = (len(codes), -1, 1) if tokens == 1 else (len(codes), 1, -1)
    shape = {"channel": channels, "token": each_token, "segment": (len(codes), 1, 1)}[plane.ranges]
    scales, zeros = scales.double().view(shape), zeros.double().view(shape if plane.coding == "absolute" else channels)
    steps = codes.double()
    if plane.coding != "absolute":
        steps = (steps - 128).cumsum(tokens)
    return zeros + scales * steps


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """codes [heads, rows, columns] uint8 → [heads, bytes] uint8."""
    shift, parts = 0, []
    for width in PARTS[bits]:
        part = codes >> shift & (2**width - 1)
        shift += width
        if width == 8:
            parts.append(part.flatten(1))
        elif width == 1:
            weights = 2 ** torch.arange(8, dtype=torch.uint8)
            parts.append((part.reshape(len(codes), -1, 8) * weights).sum(-1).to(torch.uint8))
        else:
            blocks = part.reshape(len(codes), -1, 8 // width, 16)
            parts.append(sum(blocks[:, :, i] << width * i for i in range(8 // width)).flatten(1))
    return torch.cat(parts, 1)


def unpack(data: torch.Tensor, bits: int, rows: int, columns: int) -> torch.Tensor:
    """The inverse of `pack`: [heads, bytes] → [heads, rows, columns] uint8."""
    codes, shift, at = torch.zeros(len(data), rows * columns, dtype=torch.uint8), 0, 0
    for width in PARTS[bits]:
        size = rows * columns * width // 8
        part = data[:, at : at + size]
        if width == 1:
            part = part[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1
        elif width < 8:
            part = part.reshape(len(data), -1, 1, 16) >> width * torch.arange(8 // width, dtype=torch.uint8).view(-1, 1) & (2**width - 1)
        codes |= part.flatten(1) << shift
        shift += width
        at += size
    return codes.view(len(data), rows, columns)


def encode(x: torch.Tensor, plane: Plane, tokens: int) -> torch.Tensor:
    """x [heads, rows, columns] of the tail's dtype → the planes' bytes, uint8 [heads, plane.bytes(head_dim)]."""
    head_dim = x.shape[3 - tokens]
    if plane.bits >= 16:
        return x.to(torch.float16 if plane.bits == 16 else torch.float32).flatten(1).contiguous().view(torch.uint8)
    codes, scales, zeros = quantize(x.float(), plane, tokens)
    data = torch.cat([pack(codes, plane.bits), scales.contiguous().view(torch.uint8), zeros.contiguous().view(torch.uint8)], 1)
    return torch.nn.functional.pad(data, (0, plane.bytes(head_dim) - data.shape[1]))


def decode(data: torch.Tensor, plane: Plane, tokens: int, head_dim: int) -> torch.Tensor:
    """The inverse of `encode`, as far as there is one: [heads, plane bytes] → [heads, rows, columns] fp64."""
    rows, columns = (SEGMENT, head_dim) if tokens == 1 else (head_dim, SEGMENT)
    if plane.bits >= 16:
        stored = data.contiguous().view(torch.float16 if plane.bits == 16 else torch.float32)
        return stored.double().view(-1, rows, columns)
    at, scales, zeros = plane.code_bytes(head_dim), 2 * plane.scales(head_dim), 2 * plane.zeros(head_dim)
    codes = unpack(data[:, :at], plane.bits, rows, columns)
    ranges = data[:, at : at + scales + zeros].contiguous().view(torch.float16)
    return dequantize(codes, ranges[:, : scales // 2], ranges[:, scales // 2 :], plane, tokens)


def seal(tail: torch.Tensor, layout: Layout, lead: torch.Tensor | None, page: torch.Tensor) -> None:
    """Encode a tail [kv_heads, 2, 128 * head_dim] into its page, and into the lead page too for a first segment that has one (uint8)."""
    kv_heads, _, size = tail.shape
    dim = size // SEGMENT
    keys, values = layout.first() if lead is not None else (layout.keys, layout.values)
    key_bytes = encode(tail[:, 0].reshape(kv_heads, dim, SEGMENT), keys, 2)
    value_bytes = encode(tail[:, 1].reshape(kv_heads, SEGMENT, dim), values, 1)
    if lead is None:
        both = torch.cat([key_bytes, value_bytes], 1).flatten()
        page[: len(both)] = both
    else:
        lead[: key_bytes.numel()] = key_bytes.flatten()
        page[: value_bytes.numel()] = value_bytes.flatten()


def unseal(
    layout: Layout, lead: torch.Tensor | None, page: torch.Tensor, kv_heads: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse of `seal`: keys [kv_heads, head_dim, 128], values [kv_heads, 128, head_dim], fp64."""
    keys, values = layout.first() if lead is not None else (layout.keys, layout.values)
    key_size, value_size = keys.bytes(head_dim), values.bytes(head_dim)
    if lead is None:
        both = page[: kv_heads * (key_size + value_size)].view(kv_heads, -1)
        key_bytes, value_bytes = both[:, :key_size], both[:, key_size:]
    else:
        key_bytes, value_bytes = lead[: kv_heads * key_size].view(kv_heads, -1), page[: kv_heads * value_size].view(kv_heads, -1)
    return decode(key_bytes, keys, 2, head_dim), decode(value_bytes, values, 1, head_dim)
