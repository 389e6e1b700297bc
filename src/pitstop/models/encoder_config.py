"""The shape of an encoder: everything that its forward depends on but the weights. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from pitstop.models.config import Activation


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """One encoder of BERT's kind (Devlin et al. 2019): post-norm blocks, absolute positions, every token sees its whole text.

    Sizes in elements, `context` in tokens. positions: rows of the table of positions; first_position: the row of a text's first token.
    token_types: rows of the table of token types, whose first is added to every token.
    """

    architecture: str
    layers: int
    width: int
    heads: int
    ffn: int
    vocab_size: int
    context: int
    positions: int
    first_position: int
    token_types: int
    norm_eps: float
    activation: Activation

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the encoder reads, by GGUF's name, with its row-major shape."""
        width = self.width
        outside = {
            "token_embd.weight": (self.vocab_size, width),
            "position_embd.weight": (self.positions, width),
            "token_types.weight": (self.token_types, width),
            "token_embd_norm.weight": (width,),
            "token_embd_norm.bias": (width,),
        }
        square = ("attn_q", "attn_k", "attn_v", "attn_output")
        matrices = dict.fromkeys(square, (width, width)) | {"ffn_up": (self.ffn, width), "ffn_down": (width, self.ffn)}
        weights = matrices | dict.fromkeys(("attn_output_norm", "layer_output_norm"), (width,))
        block = {f"{name}.weight": shape for name, shape in weights.items()}
        block |= {f"{name}.bias": shape[:1] for name, shape in weights.items()}
        return outside | {f"blk.{layer}.{name}": shape for layer in range(self.layers) for name, shape in block.items()}
