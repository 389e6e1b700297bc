"""Encoders: bidirectional blocks of attention and a feed-forward network, each followed by its norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pitstop.models.decoder import Loader
from pitstop.models.encoder_config import EncoderConfig
from pitstop.ops.activation import gelu_erf, gelu_tanh
from pitstop.ops.attention import full_attention
from pitstop.ops.linear import PackedLinear, linear, rows
from pitstop.ops.norm import layer_norm
from pitstop.ops.rowwise import one_thread

ACTIVATIONS = {"gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf}
"""Of ops, by their names in an EncoderConfig: [rows, ffn] → [rows, ffn]."""


@dataclass(frozen=True, slots=True)
class LayerNorm:
    weight: torch.Tensor  # [width] fp32
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor, eps: float) -> torch.Tensor:
        return layer_norm(x, self.weight, self.bias, eps)


@dataclass(frozen=True, slots=True)
class Block:
    qkv: PackedLinear  # [3 * width, width]
    output: PackedLinear  # [width, width]
    after_attention: LayerNorm
    up: PackedLinear  # [ffn, width]
    down: PackedLinear  # [width, ffn]
    after_feed_forward: LayerNorm

    def __call__(self, x: torch.Tensor, lengths: list[int], config: EncoderConfig) -> torch.Tensor:
        """x [rows, width] fp32 → [rows, width] fp32."""
        heads = linear(x, self.qkv).unflatten(1, (3, config.heads, config.head_dim))
        y = full_attention(*heads.unbind(1), lengths, config.head_dim**-0.5).flatten(1)
        x = self.after_attention(x + linear(y, self.output), config.norm_eps)
        y = linear(ACTIVATIONS[config.activation](linear(x, self.up)), self.down)
        return self.after_feed_forward(x + y, config.norm_eps)


class Encoder:
    """An encoder whose forward computes any number of whole texts, one after the other, without padding."""

    def __init__(self, load: Loader) -> None:
        self.config: EncoderConfig = load.config
        self.shared = load.shelf.size
        """Bytes of its weights that others share who map them."""
        self._device = load.device

        def norm(part: str) -> LayerNorm:
            return LayerNorm(load.vector(f"{part}.weight"), load.vector(f"{part}.bias"))

        self._tokens = load.linear("token_embd")
        self._positions = load.vector("position_embd.weight")
        self._token_type = load.vector("token_types.weight")[0]
        self._norm = norm("token_embd_norm")
        self._blocks = [
            Block(
                qkv=load.linear(*(f"{block}.{part}" for part in ("attn_q", "attn_k", "attn_v"))),
                output=load.linear(f"{block}.attn_output"),
                after_attention=norm(f"{block}.attn_output_norm"),
                up=load.linear(f"{block}.ffn_up"),
                down=load.linear(f"{block}.ffn_down"),
                after_feed_forward=norm(f"{block}.layer_output_norm"),
            )
            for block in (f"blk.{layer}" for layer in range(self.config.layers))
        ]

    @torch.inference_mode()
    @one_thread()
    def forward(self, texts: list[list[int]]) -> np.ndarray:
        """Token ids of whole texts → the last hidden states of all their tokens, one text after the other, [rows, width] fp32."""
        c, lengths = self.config, [len(text) for text in texts]
        tokens = torch.tensor([token for text in texts for token in text], dtype=torch.int64, device=self._device)
        places = [c.first_position + i for length in lengths for i in range(length)]
        x = rows(self._tokens, tokens) + self._positions[torch.tensor(places, dtype=torch.int64, device=self._device)] + self._token_type
        x = self._norm(x, c.norm_eps)
        for block in self._blocks:
            x = block(x, lengths, c)
        return x.cpu().numpy()
