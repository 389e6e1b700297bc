"""The shape of a decoder: everything that its forward depends on but the weights. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pitstop.models.rope import Rope
from pitstop.types import KVShape

Activation = Literal["silu", "gelu_tanh", "gelu_erf"]


@dataclass(frozen=True, slots=True)
class Moe:
    """The mixtures of experts of a decoder. `ffn`: the inner width of an expert.

    layers: those that have one, the others being dense; empty: all. renormalise: a row's experts' weights add up to 1, else they are shares
    of the softmax over all experts. router_softcap: on the router's logits, 0 for none. shared_ffn: the inner width of a feed-forward
    network beside the experts that takes every row, 0 for none; shared_gate: what it gives is multiplied by sigmoid(g · x).
    scale: factor on the sum of all.
    """

    experts: int
    top_k: int
    ffn: int
    renormalise: bool = True
    layers: tuple[int, ...] = ()
    router_softcap: float = 0.0
    shared_ffn: int = 0
    shared_gate: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder. Sizes in elements, `context` in tokens.

    tied_head: the output head is the embedding matrix. rope_interleaved: rotary pairs are (2i, 2i + 1), else (i, i + head_dim / 2).
    windows: by layer, how many latest positions it sees, -1 for all; empty: every layer sees all. local_rope: of the layers with a window,
    None for the same as the others. qk_norm: q and k are normalised by head before they are rotated. norms_around: what attention and
    feed-forward give is normalised, too, before it is added. attention_scale: on q·k. Soft caps: c·tanh(x / c), 0 for none.
    logit_scale: on the output's logits, before their cap. temperature_length and cap_first: types.AttentionSpec. moe: None for a dense one.
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
    logit_scale: float = 1.0
    temperature_length: int = 0
    cap_first: bool = False
    moe: Moe | None = None

    @property
    def kv_shape(self) -> KVShape:
        return KVShape(self.layers, self.kv_heads, self.head_dim)

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else -1

    def has_experts(self, layer: int) -> bool:
        return self.moe is not None and (not self.moe.layers or layer in self.moe.layers)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the decoder reads, by GGUF's name, with its row-major shape; of expert E, "blk.N.ffn_gate_exps.E.weight"."""
        outside = {"token_embd.weight": (self.vocab_size, self.width), "output_norm.weight": (self.width,)}
        head = {} if self.tied_head else {"output.weight": (self.vocab_size, self.width)}
        blocks = {True: self._block(True) if self.moe else {}, False: self._block(False)}
        layers = range(self.layers)
        return outside | head | {f"blk.{i}.{name}": shape for i in layers for name, shape in blocks[self.has_experts(i)].items()}

    def _block(self, experts: bool) -> dict[str, tuple[int, ...]]:
        width, q, kv = self.width, self.heads * self.head_dim, self.kv_heads * self.head_dim
        matrices = {
            "attn_q": (q, width),
            "attn_k": (kv, width),
            "attn_v": (kv, width),
            "attn_output": (width, q),
        } | (self._experts(self.moe) if experts else _gated("ffn_{}", self.ffn, width))
        norms = {"attn_norm": (width,), "ffn_norm": (width,)}
        if self.qk_norm:
            norms |= {"attn_q_norm": (self.head_dim,), "attn_k_norm": (self.head_dim,)}
        if self.norms_around:
            norms |= {"post_attention_norm": (width,), "post_ffw_norm": (width,)}
        biased = (["attn_q", "attn_k", "attn_v"] if self.qkv_bias else []) + (["attn_output"] if self.output_bias else [])
        weights = {f"{name}.weight": shape for name, shape in (matrices | norms).items()}
        return weights | {f"{name}.bias": matrices[name][:1] for name in biased}

    def _experts(self, moe: Moe) -> dict[str, tuple[int, ...]]:
        tensors = {"ffn_gate_inp": (moe.experts, self.width)}
        for expert in range(moe.experts):
            tensors |= _gated(f"ffn_{{}}_exps.{expert}", moe.ffn, self.width)
        if moe.shared_ffn:
            tensors |= _gated("ffn_{}_shexp", moe.shared_ffn, self.width)
        return tensors | ({"ffn_gate_inp_shexp": (1, self.width)} if moe.shared_gate else {})


def _gated(name: str, ffn: int, width: int) -> dict[str, tuple[int, ...]]:
    """The matrices of a gated feed-forward network."""
    return {name.format("gate"): (ffn, width), name.format("up"): (ffn, width), name.format("down"): (width, ffn)}
