"""The decoder that all families are made of: blocks of attention and a feed-forward network around a residual, chosen by the config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pitstop.models.config import ModelConfig, Moe
from pitstop.models.lora import weights as lora
from pitstop.models.packed import Shelf
from pitstop.models.rope import Rope
from pitstop.models.weights.source import ModelSource
from pitstop.ops import rope
from pitstop.ops.activation import gelu_erf_mul, gelu_tanh_mul, silu_mul, softcap
from pitstop.ops.linear import PackedLinear, Precision, linear, pack_stored, rows
from pitstop.ops.moe import Experts, mix, route
from pitstop.ops.norm import add_rms_norm, rms_norm
from pitstop.types import AttentionSpec, KVView

ACTIVATIONS = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul, "gelu_erf": gelu_erf_mul}
"""Of ops, by their names in a ModelConfig: [rows, 2 * ffn] → [rows, ffn]."""


@dataclass(frozen=True, slots=True)
class Attention:
    """One block's attention. q_norm, k_norm: [head_dim] fp32, or None both."""

    qkv: PackedLinear  # [(heads + 2 * kv_heads) * head_dim, width]
    output: PackedLinear  # [width, heads * head_dim]
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    spec: AttentionSpec

    def __call__(self, layer: int, hidden: torch.Tensor, view: KVView, config: ModelConfig, runs: Sequence[lora.Run] = ()) -> torch.Tensor:
        """hidden [rows, width] fp32 → [rows, width] fp32."""
        c = config
        qkv = linear(hidden, self.qkv)
        lora.add(qkv, hidden, runs, layer, "qkv")
        heads = qkv.unflatten(1, (c.heads + 2 * c.kv_heads, c.head_dim))
        q, k, v = heads.split((c.heads, c.kv_heads, c.kv_heads), dim=1)
        if self.q_norm is not None:
            q, k = rms_norm(q, self.q_norm, c.norm_eps), rms_norm(k, self.k_norm, c.norm_eps)
        seen = view.attend(layer, q, k, v, self.spec).flatten(1)
        output = linear(seen, self.output)
        lora.add(output, seen, runs, layer, "output")
        return output


@dataclass(frozen=True, slots=True)
class GatedFeedForward:
    """down(activation(gate(x)) · up(x))."""

    gate_up: PackedLinear  # [2 * ffn, width]
    down: PackedLinear  # [width, ffn]
    activation: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, hidden: torch.Tensor, layer: int = 0, runs: Sequence[lora.Run] = ()) -> torch.Tensor:
        """hidden [rows, width] fp32 → [rows, width] fp32."""
        gate_up = linear(hidden, self.gate_up)
        lora.add(gate_up, hidden, runs, layer, "gate_up")
        inner = self.activation(gate_up)
        down = linear(inner, self.down)
        lora.add(down, inner, runs, layer, "down")
        return down


@dataclass(frozen=True, slots=True)
class MixtureFeedForward:
    """Each row's experts, and beside them, where the family has it, a network that every row goes through."""

    router: PackedLinear  # [experts, width]
    experts: Experts
    shared: GatedFeedForward | None
    shared_gate: PackedLinear | None  # [1, width]
    moe: Moe

    def __call__(self, hidden: torch.Tensor, layer: int = 0, runs: Sequence[lora.Run] = ()) -> torch.Tensor:
        """hidden [rows, width] fp32 → [rows, width] fp32. No adapter changes it."""
        logits = linear(hidden, self.router)
        if self.moe.router_softcap:
            logits = softcap(logits, self.moe.router_softcap)
        y = mix(hidden, *route(logits, self.moe.top_k, self.moe.renormalise), self.experts)
        if self.shared is not None:
            beside = self.shared(hidden)
            if self.shared_gate is not None:
                beside = beside * (0.5 + softcap(linear(hidden, self.shared_gate), 2.0) * 0.25)  # sigmoid(g) = (1 + tanh(g / 2)) / 2
            y = y + beside
        return y if self.moe.scale == 1 else y * self.moe.scale


@dataclass(frozen=True, slots=True)
class Block:
    """Norms are [width] fp32; those after attention and feed-forward are None both where the family has none."""

    attention_norm: torch.Tensor
    attention: Attention
    after_attention: torch.Tensor | None
    ffn_norm: torch.Tensor
    feed_forward: GatedFeedForward | MixtureFeedForward
    after_feed_forward: torch.Tensor | None


class Decoder:
    """A decoder whose forward computes any mixture of requests' rows; the KV cache behind `view` knows which is whose."""

    def __init__(self, load: Loader, context: int) -> None:
        c: ModelConfig = load.config
        self.config = c
        self.shared = load.shelf.size
        """Bytes of its weights that others share who map them."""
        self._embedding = load.linear("token_embd")
        self._final_norm = load.vector("output_norm.weight") * c.logit_scale  # a factor on logits is one on what the head multiplies
        self._head = self._embedding if c.tied_head else load.linear("output")
        specs = _specs(c, context, load.device)
        self._blocks = [load_block(load, layer, c, specs[c.window(layer) >= 0]) for layer in range(c.layers)]

    def limit(self, context: int) -> None:
        """Serve positions below `context`, which may be fewer than it was loaded for: some rotations depend on it."""
        specs = _specs(self.config, context, self._final_norm.device.type)
        attentions = [replace(b.attention, spec=specs[b.attention.spec.window >= 0]) for b in self._blocks]
        self._blocks = [replace(b, attention=attention) for b, attention in zip(self._blocks, attentions, strict=True)]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens [rows] int64 → [rows, width] fp32."""
        return rows(self._embedding, tokens, self.config.embedding_scale)

    def forward(self, x: torch.Tensor, view: KVView, wanted: torch.Tensor | None = None, runs: Sequence[lora.Run] = ()) -> torch.Tensor:
        """Embedded rows x [rows, width] fp32 → logits [n, vocab] fp32 of the rows `wanted` [n] int64, or of all: then it calls ops only.

        runs: which rows an adapter changes; the others are the model's own.
        """
        hidden = self.hidden(x, view, runs)
        return self.head(hidden if wanted is None else hidden[wanted])

    def hidden(self, x: torch.Tensor, view: KVView, runs: Sequence[lora.Run] = ()) -> torch.Tensor:
        """Embedded rows x [rows, width] fp32 → what the head multiplies, [rows, width] fp32."""
        c = self.config
        next_norms = [*(block.attention_norm for block in self._blocks[1:]), self._final_norm]
        hidden = rms_norm(x, self._blocks[0].attention_norm, c.norm_eps)
        for layer, (block, next_norm) in enumerate(zip(self._blocks, next_norms, strict=True)):
            y = block.attention(layer, hidden, view, c, runs)
            if block.after_attention is not None:
                y = rms_norm(y, block.after_attention, c.norm_eps)
            x, hidden = add_rms_norm(x, y, block.ffn_norm, c.norm_eps)
            y = block.feed_forward(hidden, layer, runs)
            if block.after_feed_forward is not None:
                y = rms_norm(y, block.after_feed_forward, c.norm_eps)
            x, hidden = add_rms_norm(x, y, next_norm, c.norm_eps)
        return hidden

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows of `hidden` → logits [rows, vocab] fp32."""
        logits, cap = linear(hidden, self._head), self.config.logit_softcap
        return softcap(logits, cap) if cap else logits

    def embedding(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows of `hidden` → the states after the last norm, [rows, width] fp32: that carries the factor on logits here."""
        return hidden if self.config.logit_scale == 1 else hidden / self.config.logit_scale


class Loader:
    """Reads a source's tensors onto a device, under the names and with the shapes that its config has."""

    def __init__(self, source: ModelSource, device: str, activations: str, shelf: Shelf) -> None:
        self.config = source.config
        self.device = device
        self.shelf = shelf
        self._source = source
        self._shapes = source.config.tensors()
        self._activations: Precision = "int16" if activations == "exact" else activations

    def vector(self, name: str) -> torch.Tensor:
        """fp32."""
        return torch.from_numpy(np.array(self._source.tensor(name, self._shapes[name]).dequantize())).to(self.device)

    def linear(self, *parts: str) -> PackedLinear:
        """The matrices of the `parts` (names without ".weight"), stacked by rows, with their biases where they have them."""
        names = [f"{part}.weight" for part in parts]

        def pack() -> PackedLinear:
            return pack_stored([self._source.tensor(name, self._shapes[name]) for name in names], self.device, self._activations)

        weight = self.shelf.get("+".join(parts), self._activations, pack)
        if f"{parts[0]}.bias" not in self._shapes:
            return weight
        return replace(weight, bias=torch.cat([self.vector(f"{part}.bias") for part in parts]))


def load_block(load: Loader, layer: int, config: ModelConfig, spec: AttentionSpec) -> Block:
    prefix = f"blk.{layer}."

    def named(*parts: str) -> list[str]:
        return [prefix + part for part in parts]

    def norm(part: str, there: bool = True) -> torch.Tensor | None:
        return load.vector(f"{prefix}{part}.weight") if there else None

    c = config
    return Block(
        attention_norm=norm("attn_norm"),
        attention=Attention(
            qkv=load.linear(*named("attn_q", "attn_k", "attn_v")),
            output=load.linear(*named("attn_output")),
            q_norm=norm("attn_q_norm", c.qk_norm),
            k_norm=norm("attn_k_norm", c.qk_norm),
            spec=spec,
        ),
        after_attention=norm("post_attention_norm", c.norms_around),
        ffn_norm=norm("ffn_norm"),
        feed_forward=load_mixture(load, prefix, c) if c.has_experts(layer) else load_gated(load, prefix + "ffn_{}", c),
        after_feed_forward=norm("post_ffw_norm", c.norms_around),
    )


def load_gated(load: Loader, name: str, config: ModelConfig) -> GatedFeedForward:
    """The network whose matrices are called `name` with gate, up and down in it."""
    gate_up = load.linear(name.format("gate"), name.format("up"))
    return GatedFeedForward(gate_up, load.linear(name.format("down")), ACTIVATIONS[config.activation])


def load_mixture(load: Loader, prefix: str, config: ModelConfig) -> MixtureFeedForward:
    moe = config.moe
    experts = [load_gated(load, f"{prefix}ffn_{{}}_exps.{expert}", config) for expert in range(moe.experts)]
    return MixtureFeedForward(
        router=load.linear(f"{prefix}ffn_gate_inp"),
        experts=Experts(tuple(e.gate_up for e in experts), tuple(e.down for e in experts), ACTIVATIONS[config.activation]),
        shared=load_gated(load, prefix + "ffn_{}_shexp", config) if moe.shared_ffn else None,
        shared_gate=load.linear(f"{prefix}ffn_gate_inp_shexp") if moe.shared_gate else None,
        moe=moe,
    )


def _specs(config: ModelConfig, context: int, device: str) -> dict[bool, AttentionSpec]:
    """The attention of layers with a window (True) and of those without, for positions below `context`."""
    c = config

    def tables(turns: Rope) -> tuple[torch.Tensor, torch.Tensor]:
        rotation = turns.rotation(c.head_dim, context)
        cos, sin = rope.tables(context, torch.from_numpy(rotation.frequencies), rotation.factor)
        return cos.to(device), sin.to(device)

    everywhere = AttentionSpec(
        scale=c.attention_scale,
        softcap=c.attention_softcap,
        rope=tables(c.rope),
        interleaved=c.rope_interleaved,
        temperature_length=c.temperature_length,
        cap_first=c.cap_first,
    )
    if not c.windows:
        return {False: everywhere}
    window = max(c.windows)
    local = replace(everywhere, window=window, rope=tables(c.local_rope) if c.local_rope else everywhere.rope)
    return {False: everywhere, True: local}
