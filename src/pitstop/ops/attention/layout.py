"""How sealed segments lie in their pages: for keys and for values, how many bits a code has and which codes share a range.

A page holds, head after head, a plane of keys and a plane of values. A plane is its codes, then its scales, then its zeros (fp16), padded
to 16 bytes. Rows of codes are channels for keys ([head_dim][128], as in a tail) and tokens for values ([128][head_dim]). The bits of codes
that are no whole byte are cut into parts of 4, 2 and 1, low bits first, one part of the whole plane after the other:

- 8: a byte a code.
- 4: of each 32 codes of a row, byte j of 16 holds code j in its low half, code 16 + j in its high half.
- 2: of each 64 codes of a row, byte j of 16 holds the codes j, 16 + j, 32 + j, 48 + j from the low bits up.
- 1: of each 16 codes of a row, bit j of two bytes (the first the low one) is code j.

A code stands for scale * code + zero. The first segment of a stream, whose first tokens are outliers in most models, may be stored with
more bits (`lead`): it then takes two pages, the keys' planes of all heads in the one, the values' planes in the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pitstop.types import SEGMENT

Ranges = Literal["none", "channel", "token", "segment"]
"""What shares a scale and a zero: one channel's 128 tokens, one token's head_dim channels, or all of a head's codes. none: no codes."""

Coding = Literal["absolute", "closed", "open"]
"""absolute: codes are values. closed, open: a code is the difference to the token before as stored (closed loop) or as it was (open loop),
less 128; the zeros are the first token's channels (fp16 [head_dim]), the scale is one for the segment."""

PARTS = {8: (8,), 7: (4, 2, 1), 6: (4, 2), 5: (4, 1), 4: (4,), 3: (2, 1), 2: (2,)}
"""Bits of a code, low ones first, as they are stored."""


@dataclass(frozen=True, slots=True)
class Plane:
    """The keys or the values of one head in one segment. bits 32 and 16: floating point, as in a tail; 2 to 8: unsigned codes."""

    bits: int
    ranges: Ranges = "none"
    coding: Coding = "absolute"

    def __post_init__(self) -> None:
        if self.bits not in PARTS and self.bits not in (16, 32):
            raise ValueError(f"a plane has 2 to 8 bits, 16 or 32, not {self.bits}")
        if (self.ranges == "none") != (self.bits >= 16):
            raise ValueError(f"{self.bits} bits do not go with ranges {self.ranges!r}")
        if self.coding != "absolute" and (self.bits, self.ranges) != (8, "segment"):
            raise ValueError("differences have 8 bits and one scale a segment")

    @property
    def block(self) -> int:
        """How many codes of a row are stored together: rows of another length than a multiple of it cannot be."""
        return max((128 // part for part in PARTS.get(self.bits, ()) if part in (2, 4)), default=1)

    def code_bytes(self, head_dim: int) -> int:
        return SEGMENT * head_dim * self.bits // 8

    def scales(self, head_dim: int) -> int:
        """How many fp16 scales."""
        return {"none": 0, "channel": head_dim, "token": SEGMENT, "segment": 1}[self.ranges]

    def zeros(self, head_dim: int) -> int:
        """How many fp16 zeros."""
        return self.scales(head_dim) if self.coding == "absolute" else head_dim

    def bytes(self, head_dim: int) -> int:
        """All of it, padding included."""
        return -(-(self.code_bytes(head_dim) + 2 * self.scales(head_dim) + 2 * self.zeros(head_dim)) // 16) * 16

    def with_bits(self, bits: int) -> Plane:
        return Plane(bits, self.ranges, self.coding)


@dataclass(frozen=True, slots=True)
class Layout:
    """lead: bits of the first segment's codes, keys and values alike; 0: it is like the others."""

    keys: Plane
    values: Plane
    lead: int = 0

    @property
    def lead_pages(self) -> int:
        """Pages that a stream's first segment takes beside its own: the page table starts with them."""
        return 1 if self.lead else 0

    def page_bytes(self, kv_heads: int, head_dim: int) -> int:
        """Bytes of one page of one layer. Raises ValueError when the first segment does not fit into two pages."""
        size = kv_heads * (self.keys.bytes(head_dim) + self.values.bytes(head_dim))
        if self.lead and (need := kv_heads * max(plane.bytes(head_dim) for plane in self.first())) > size:
            raise ValueError(f"the first segment at {self.lead} bits takes {need} bytes in each of two pages of {size}")
        return size

    def first(self) -> tuple[Plane, Plane]:
        """Keys and values of a stream's first segment."""
        return (self.keys.with_bits(self.lead), self.values.with_bits(self.lead)) if self.lead else (self.keys, self.values)


RAW16 = Layout(Plane(16), Plane(16))
RAW32 = Layout(Plane(32), Plane(32))
