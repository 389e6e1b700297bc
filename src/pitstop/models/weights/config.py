"""The shape of a model, read from a GGUF file's keys. What a key asks for and we do not honour is refused here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitstop.errors import WeightsError
from pitstop.types import KVShape


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder. Sizes in elements, `context` in tokens.

    `rope_interleaved`: rotary pairs are (2i, 2i + 1), else (i, i + head_dim / 2). `tied_head`: the output head is the embedding matrix.
    """

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    context: int
    norm_eps: float
    rope_theta: float
    rope_interleaved: bool
    tied_head: bool

    @property
    def kv_shape(self) -> KVShape:
        return KVShape(self.layers, self.kv_heads, self.head_dim)


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one GGUF architecture is read. Tensor names lack the ".weight" ending; `block` tensors live under "blk.N."."""

    rope_interleaved: bool
    tensors: frozenset[str]
    block: frozenset[str]

    def knows(self, tensor: str, layers: int) -> bool:
        """Whether a decoder of `layers` layers has a tensor of this full name."""
        stem, _, ending = tensor.rpartition(".")
        if ending != "weight":
            return False
        if stem in self.tensors:
            return True
        head, _, part = stem.removeprefix("blk.").partition(".")
        return stem.startswith("blk.") and head.isdecimal() and int(head) < layers and part in self.block


ARCHITECTURES = {
    # The converter to GGUF permutes the rows of a Llama's q and k so that rotary pairs lie side by side.
    "llama": Architecture(
        rope_interleaved=True,
        tensors=frozenset({"token_embd", "output_norm", "output"}),
        block=frozenset({"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"}),
    ),
}

_READ = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
        "vocab_size",
    }
)
_NEUTRAL = {
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scale_linear": 1.0,
    "attention.causal": True,
}
"""Keys that change nothing at this value, and that we do not honour at any other."""


def read_config(path: Path, keys: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """The config from a file's `keys` and its tensors' row-major `shapes`.

    Raises WeightsError: unknown architecture, a missing or impossible key, a key or a tensor that we do not honour.
    """
    name = keys.get("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise WeightsError(path, f"architecture {name!r} is unknown; we run: {known}")
    architecture = ARCHITECTURES[name]
    own = {key.removeprefix(f"{name}."): value for key, value in keys.items() if key.startswith(f"{name}.")}
    for key, value in own.items():
        if key not in _READ and (key not in _NEUTRAL or value != _NEUTRAL[key]):
            raise WeightsError(path, f"{name}.{key} = {value!r} is not honoured yet; choose a model without it")
    config = _sizes(path, name, own, shapes)
    for tensor in shapes:
        if not architecture.knows(tensor, config.layers):
            raise WeightsError(path, f"no part of a {name} decoder of {config.layers} layers that we run", tensor)
    return config


def _sizes(path: Path, name: str, own: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    def number(key: str, default: float | None = None, kind: type = int) -> Any:
        value = own.get(key, default)
        if value is None:
            raise WeightsError(path, f"{name}.{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int | kind) or not 0 < value < 2**31:
            raise WeightsError(path, f"{name}.{key} = {value!r} is not a positive {kind.__name__}")
        return kind(value)

    width, heads = number("embedding_length"), number("attention.head_count")
    kv_heads = number("attention.head_count_kv", heads)
    head_dim = number("attention.key_length", width // heads)
    if heads % kv_heads:
        raise WeightsError(path, f"{heads} heads do not divide among {kv_heads} key-value heads")
    for key in ("attention.value_length", "rope.dimension_count"):
        if number(key, head_dim) != head_dim:
            raise WeightsError(path, f"{name}.{key} = {own[key]} differs from the head size {head_dim}, which is not honoured yet")
    if head_dim % 2:
        raise WeightsError(path, f"head size {head_dim} is odd: rotary embedding needs pairs")
    embedding = shapes.get("token_embd.weight")
    if embedding is None:
        raise WeightsError(path, "is missing", "token_embd.weight")
    return ModelConfig(
        architecture=name,
        layers=number("block_count"),
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=number("feed_forward_length"),
        vocab_size=number("vocab_size", embedding[0]),
        context=number("context_length"),
        norm_eps=number("attention.layer_norm_rms_epsilon", kind=float),
        rope_theta=number("rope.freq_base", 10000.0, kind=float),
        rope_interleaved=ARCHITECTURES[name].rope_interleaved,
        tied_head="output.weight" not in shapes,
    )
