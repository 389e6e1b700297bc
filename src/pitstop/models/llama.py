"""The Llama family: grouped-query attention, RMSNorm, SwiGLU, RoPE, tied or own head (Touvron et al. 2023; Grattafiori et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pitstop.models.weights.config import ModelConfig
from pitstop.models.weights.gguf import ModelFile
from pitstop.ops import rope
from pitstop.ops.activation import silu_mul
from pitstop.ops.linear import PackedLinear, Precision, linear, pack_stored, rows
from pitstop.ops.norm import add_rms_norm, rms_norm
from pitstop.types import AttentionSpec, KVView


@dataclass(frozen=True, slots=True)
class Layer:
    """One block's weights; norms are [width] fp32."""

    attention_norm: torch.Tensor
    qkv: PackedLinear  # [(heads + 2 * kv_heads) * head_dim, width]
    output: PackedLinear  # [width, heads * head_dim]
    ffn_norm: torch.Tensor
    gate_up: PackedLinear  # [2 * ffn, width]
    down: PackedLinear  # [width, ffn]


class Llama:
    """A decoder whose forward computes any mixture of requests' rows; the KV cache behind `view` knows which is whose."""

    def __init__(self, file: ModelFile, device: str, context: int, activations: Precision) -> None:
        config = file.config
        self.config = config
        self._loader = loader = _Loader(file, device, activations)
        c = config
        self._embedding = loader.linear(("token_embd.weight", c.vocab_size), columns=c.width)
        self._layers = [self._load_layer(index) for index in range(c.layers)]
        self._final_norm = loader.vector("output_norm.weight", c.width)
        self._head = self._embedding if c.tied_head else loader.linear(("output.weight", c.vocab_size), columns=c.width)
        tables = rope.tables(context, c.head_dim, c.rope_theta)
        cos, sin = (table.to(device) for table in tables)
        self._attention = AttentionSpec(scale=c.head_dim**-0.5, rope=(cos, sin), interleaved=c.rope_interleaved)
        del self._loader

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens [rows] int64 → [rows, width] fp32."""
        return rows(self._embedding, tokens)

    def forward(self, x: torch.Tensor, view: KVView, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """Embedded rows x [rows, width] fp32 → logits [n, vocab] fp32 of the rows `wanted` [n] int64, or of all: then it calls ops only."""
        c: ModelConfig = self.config
        widths = (c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim)
        norms = [*(layer.attention_norm for layer in self._layers[1:]), self._final_norm]
        hidden = rms_norm(x, self._layers[0].attention_norm, c.norm_eps)
        for index, (layer, next_norm) in enumerate(zip(self._layers, norms, strict=True)):
            q, k, v = linear(hidden, layer.qkv).split(widths, dim=1)
            mixed = view.attend(
                index,
                q.unflatten(1, (c.heads, c.head_dim)),
                k.unflatten(1, (c.kv_heads, c.head_dim)),
                v.unflatten(1, (c.kv_heads, c.head_dim)),
                self._attention,
            )
            x, hidden = add_rms_norm(x, linear(mixed.flatten(1), layer.output), layer.ffn_norm, c.norm_eps)
            hidden = silu_mul(linear(hidden, layer.gate_up))
            x, hidden = add_rms_norm(x, linear(hidden, layer.down), next_norm, c.norm_eps)
        return linear(hidden if wanted is None else hidden[wanted], self._head)

    def _load_layer(self, index: int) -> Layer:
        c, load, block = self.config, self._loader, f"blk.{index}."
        q_rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim
        return Layer(
            attention_norm=load.vector(block + "attn_norm.weight", c.width),
            qkv=load.linear(
                (block + "attn_q.weight", q_rows), (block + "attn_k.weight", kv_rows), (block + "attn_v.weight", kv_rows), columns=c.width
            ),
            output=load.linear((block + "attn_output.weight", c.width), columns=q_rows),
            ffn_norm=load.vector(block + "ffn_norm.weight", c.width),
            gate_up=load.linear((block + "ffn_gate.weight", c.ffn), (block + "ffn_up.weight", c.ffn), columns=c.width),
            down=load.linear((block + "ffn_down.weight", c.width), columns=c.ffn),
        )


class _Loader:
    """Reads tensors of a model file onto a device."""

    def __init__(self, file: ModelFile, device: str, activations: Precision) -> None:
        self._file = file
        self._device = device
        self._activations = activations

    def vector(self, name: str, size: int) -> torch.Tensor:
        return torch.from_numpy(np.array(self._file.tensor(name, (size,)).dequantize())).to(self._device)

    def linear(self, *parts: tuple[str, int], columns: int) -> PackedLinear:
        """The named matrices [rows, columns], stacked by rows."""
        return pack_stored([self._file.tensor(name, (count, columns)) for name, count in parts], self._device, self._activations)
