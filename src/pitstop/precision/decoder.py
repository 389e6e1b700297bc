"""The dense decoder in plain torch, whole sequences at a time: what training and calibration run, gradients included.

Parameters have the names of ModelConfig.tensors. Served models go through models/decoder.py; a test compares the two.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from pitstop.errors import Unsupported
from pitstop.models.config import ModelConfig
from pitstop.models.rope import Rope
from pitstop.models.weights.source import ModelSource
from pitstop.ops import rope
from pitstop.ops.rope import ref

ACTIVATIONS = {"silu": F.silu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "gelu_erf": F.gelu}
"""By their names in a ModelConfig."""


class Positions(NamedTuple):
    """What a layer knows: cos and sin [length, head_dim / 2], and who sees whom, bool [length, length], or None for causally."""

    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor | None


class Block(nn.Module):
    """Attention and a gated feed-forward network around a residual. Raises Unsupported for a mixture of experts."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        for name, shape in block_tensors(config, layer).items():
            part, _, kind = name.rpartition(".")
            if len(shape) == 2:
                biased = f"{part}.bias" in block_tensors(config, layer)
                self.add_module(part, nn.Linear(shape[1], shape[0], bias=biased))
            elif kind == "weight":
                self.add_module(part, nn.RMSNorm(shape[0], eps=config.norm_eps))

    def forward(self, x: torch.Tensor, positions: Positions) -> torch.Tensor:
        """x [batch, length, width] → the same shape."""
        y = self._attend(self.attn_norm(x), positions)
        x = x + (self.post_attention_norm(y) if self.config.norms_around else y)
        hidden = self.ffn_norm(x)
        y = self.ffn_down(ACTIVATIONS[self.config.activation](self.ffn_gate(hidden)) * self.ffn_up(hidden))
        return x + (self.post_ffw_norm(y) if self.config.norms_around else y)

    def _attend(self, hidden: torch.Tensor, positions: Positions) -> torch.Tensor:
        c = self.config
        q, k, v = (part(hidden).unflatten(-1, (-1, c.head_dim)) for part in (self.attn_q, self.attn_k, self.attn_v))
        if c.qk_norm:
            q, k = self.attn_q_norm(q.float()), self.attn_k_norm(k.float())
        q, k = (_turn(part, positions, c).to(v.dtype) for part in (q, k))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if c.attention_softcap:
            k, v = (part.repeat_interleave(c.heads // c.kv_heads, 1) for part in (k, v))
            scores = c.attention_softcap * torch.tanh(q @ k.transpose(2, 3) * (c.attention_scale / c.attention_softcap))
            seen = causal(hidden.shape[1]) if positions.mask is None else positions.mask
            out = scores.masked_fill(~seen, -torch.inf).softmax(-1).to(v.dtype) @ v
        else:
            causally = positions.mask is None
            out = F.scaled_dot_product_attention(q, k, v, positions.mask, is_causal=causally, scale=c.attention_scale, enable_gqa=True)
        return self.attn_output(out.transpose(1, 2).flatten(2))


class DenseDecoder(nn.Module):
    """Tokens to logits. Raises Unsupported, naming the family, for a mixture of experts."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        refuse_experts(config)
        self.config = config
        self.token_embd = nn.Embedding(config.vocab_size, config.width)
        self.blk = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.output_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        if not config.tied_head:
            self.output = nn.Linear(config.width, config.vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens [batch, length] int64 → logits [batch, length, vocab]."""
        c = self.config
        x = self.token_embd(tokens) * c.embedding_scale
        positions = all_positions(c, tokens.shape[1])
        for layer, block in enumerate(self.blk):
            x = block(x, positions[c.window(layer)])
        logits = F.linear(self.output_norm(x), self.token_embd.weight if c.tied_head else self.output.weight)
        return c.logit_softcap * torch.tanh(logits / c.logit_softcap) if c.logit_softcap else logits


def load_decoder(source: ModelSource) -> DenseDecoder:
    """The source's weights in fp32."""
    with torch.device("meta"):
        decoder = DenseDecoder(source.config)
    decoder.load_state_dict({name: fp32(source, name) for name in source.config.tensors()}, assign=True)
    return decoder


def load_block(source: ModelSource, layer: int) -> Block:
    with torch.device("meta"):
        block = Block(source.config, layer)
    names = block_tensors(source.config, layer)
    block.load_state_dict({name: fp32(source, f"blk.{layer}.{name}") for name in names}, assign=True)
    return block


def fp32(source: ModelSource, name: str) -> torch.Tensor:
    """A tensor's values."""
    values = source.tensor(name, source.config.tensors()[name]).dequantize()
    return torch.from_numpy(values.copy() if not values.flags.writeable else values)


def refuse_experts(config: ModelConfig, option: str = "--qat") -> None:
    if config.moe is not None:
        raise Unsupported(f"{option}: {config.architecture} is a mixture of experts, which is not trained or calibrated here; leave it out")


def block_tensors(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """A layer's tensors by their names within it."""
    prefix = f"blk.{layer}."
    return {name.removeprefix(prefix): shape for name, shape in config.tensors().items() if name.startswith(prefix)}


def all_positions(config: ModelConfig, length: int) -> dict[int, Positions]:
    """By a layer's window."""
    c = config

    def positions(window: int) -> Positions:
        turns: Rope = c.local_rope if window >= 0 and c.local_rope else c.rope
        rotation = turns.rotation(c.head_dim, length)
        cos, sin = rope.tables(length, torch.from_numpy(rotation.frequencies), rotation.factor)
        seen = causal(length)
        return Positions(cos, sin, seen & ~causal(length, -window) if 0 <= window < length else None)

    return {window: positions(window) for window in {c.window(layer) for layer in range(c.layers)}}


def causal(length: int, diagonal: int = 0) -> torch.Tensor:
    """bool [length, length]: j <= i + diagonal."""
    return torch.ones(length, length, dtype=torch.bool).tril(diagonal)


def _turn(x: torch.Tensor, positions: Positions, config: ModelConfig) -> torch.Tensor:
    """x [batch, length, heads, head_dim] rotated by its positions."""
    batch, length = x.shape[:2]
    at = torch.arange(length).repeat(batch)
    return ref.rotate(x.flatten(0, 1).float(), at, positions.cos, positions.sin, config.rope_interleaved).unflatten(0, (batch, length))
