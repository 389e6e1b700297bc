"""The shape of a decoder: everything that its forward depends on but the weights. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pitstop.models.rope import Rope
from pitstop.types import KVShape

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder. Sizes in elements, `context` in tokens.

    tied_head: the output head is the embedding matrix. rope_interleaved: rotary pairs are (2i, 2i + 1), else (i, i + head_dim / 2).
    windows: by layer, how many latest positions it sees, -1 for all; empty: every layer sees all. local_rope: of the layers with a window,
    None for the same as the others. qk_norm: q and k are normalised by head before they are rotated. norms_around: what attention and
    feed-forward give is normalised, too, before it is added. attention_scale: on q·k. Soft caps: c·tanh(x / c), 0 for none.
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
    rope: Rope
    attention_scale: float
    tied_head: bool
    rope_interleaved: bool = False
    windows: tuple[int, ...] = ()
    local_rope: Rope | None = None
    activation: Activation = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    norms_around: bool = False
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0

    @property
    def kv_shape(self) -> KVShape:
        return KVShape(self.layers, self.kv_heads, self.head_dim)

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else -1

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the decoder reads, by GGUF's name, with its row-major shape."""
        outside = {"token_embd.weight": (self.vocab_size, self.width), "output_norm.weight": (self.width,)}
        head = {} if self.tied_head else {"output.weight": (self.vocab_size, self.width)}
        block = self._block()
        return outside | head | {f"blk.{layer}.{name}": shape for layer in range(self.layers) for name, shape in block.items()}

    def _block(self) -> dict[str, tuple[int, ...]]:
        width, q, kv = self.width, self.heads * self.head_dim, self.kv_heads * self.head_dim
        matrices = {
            "attn_q": (q, width),
            "attn_k": (kv, width),
            "attn_v": (kv, width),
            "attn_output": (width, q),
            "ffn_gate": (self.ffn, width),
            "ffn_up": (self.ffn, width),
            "ffn_down": (width, self.ffn),
        }
        norms = {"attn_norm": (width,), "ffn_norm": (width,)}
        if self.qk_norm:
            norms |= {"attn_q_norm": (self.head_dim,), "attn_k_norm": (self.head_dim,)}
        if self.norms_around:
            norms |= {"post_attention_norm": (width,), "post_ffw_norm": (width,)}
        biased = (["attn_q", "attn_k", "attn_v"] if self.qkv_bias else []) + (["attn_output"] if self.output_bias else [])
        weights = {f"{name}.weight": shape for name, shape in (matrices | norms).items()}
        return weights | {f"{name}.bias": matrices[name][:1] for name in biased}
