"""What all codecs are: a layout of sealed segments, read by one attention arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import get_args

import torch

from pitstop.ops import attention
from pitstop.ops.attention import planes, triton
from pitstop.ops.attention.launches import Launches
from pitstop.ops.attention.layout import Layout
from pitstop.ops.attention.plan import Heads
from pitstop.ops.attention.triton import Launch
from pitstop.types import AttentionSpec, KVShape, Rotated

OPTIONS = "keys=BITS, values=BITS, lead=BITS (of the first segment; 0: as the others), rotate=none, keys or both"


@dataclass(frozen=True, slots=True)
class Segmented:
    """See types.Codec."""

    name: str
    layout: Layout
    tail_dtype: torch.dtype = torch.float16
    rotated: Rotated = "none"

    @property
    def lead_pages(self) -> int:
        return self.layout.lead_pages

    def supports(self, shape: KVShape, device: str) -> str | None:
        dim = shape.head_dim
        if self.rotated != "none" and dim & (dim - 1):
            return f"its rotation needs a head dimension that is a power of two, not {dim}"
        block = max(plane.block for plane in (self.layout.values, self.layout.first()[1]))
        if dim % block:
            return f"its codes lie in blocks of {block} channels, which do not divide a head dimension of {dim}"
        try:
            self.page_bytes(shape)
        except ValueError as error:
            return str(error)
        return None

    def with_options(self, options: str) -> Segmented:
        """This codec with `options`, like "keys=5,values=4", changed. Raises ValueError, saying what is wrong, for others than OPTIONS."""
        given: dict[str, str] = {}
        for option in options.split(","):
            key, equals, value = option.partition("=")
            if not equals or key not in ("keys", "values", "lead", "rotate") or key in given:
                raise ValueError(f"{option!r} is {'given twice' if key in given else 'no option'}; there are {OPTIONS}")
            given[key] = value
        rotated = given.pop("rotate", self.rotated)
        if rotated not in get_args(Rotated):
            raise ValueError(f"rotate={rotated} is none of {', '.join(get_args(Rotated))}")
        if wrong := [f"{key}={value}" for key, value in given.items() if not value.isdecimal()]:
            raise ValueError(f"{wrong[0]} is no number of bits")
        bits = {key: int(value) for key, value in given.items()}
        planes = {key: getattr(self.layout, key).with_bits(bits[key]) for key in ("keys", "values") if key in bits}
        layout = replace(self.layout, **planes, lead=bits.get("lead", self.layout.lead))
        layout.first()  # raises for a lead that is no number of bits
        return replace(self, name=f"{self.name}:{options}", layout=layout, rotated=rotated)

    def page_bytes(self, shape: KVShape) -> int:
        return self.layout.page_bytes(shape.kv_heads, shape.head_dim)

    def encode(self, tails: torch.Tensor, pages: torch.Tensor, items: torch.Tensor, table: torch.Tensor) -> None:
        attention.seal(tails, pages, items, table, self.layout)

    def decode(self, lead: torch.Tensor | None, page: torch.Tensor, shape: KVShape) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = planes.unseal(self.layout, lead, page, shape.kv_heads, shape.head_dim)
        return keys.transpose(1, 2).float(), values.float()

    def launches(self, shape: KVShape, heads: int, windows: Iterable[int], device: str) -> Launches | None:
        shapes, where = Heads(heads, shape.kv_heads, shape.head_dim), torch.device(device)
        if self.tail_dtype is not torch.float16 or not Launches.usable(self.layout, shapes, where):
            return None
        return Launches(self.layout, shapes, windows, where)

    def attend(
        self,
        q: torch.Tensor,
        tails: torch.Tensor,
        pages: torch.Tensor,
        items: torch.Tensor,
        table: torch.Tensor,
        spec: AttentionSpec,
        launch: Launch | None = None,
    ) -> torch.Tensor:
        scores = (spec.scale, spec.softcap, spec.window, spec.temperature_length, spec.cap_first)
        if launch is not None:
            return triton.attend(q, tails, pages, table, launch, self.layout, triton.Scores(*scores))
        return attention.paged_attention(q, tails, pages, items, table, self.layout, *scores)
