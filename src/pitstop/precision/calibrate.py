"""Rounding by what a text makes of the model: block by block, each on what the blocks before it, already rounded, give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from pitstop.models.weights.source import ModelSource
from pitstop.precision.decoder import Block, all_positions, fp32, load_block, refuse_experts
from pitstop.precision.gptq import gptq, seen
from pitstop.precision.grid import Rounded
from pitstop.precision.scheme import Scheme

SEQUENCES = 32
"""Of a text, spread over it, are used."""
_INPUTS = {
    "attn_q": ("attn_q", "attn_k", "attn_v"),
    "attn_output": ("attn_output",),
    "ffn_gate": ("ffn_gate", "ffn_up"),
    "ffn_down": ("ffn_down",),
}
"""Which matrices of a block have one input in common."""


@torch.no_grad()
def calibrated(
    source: ModelSource, schemes: Mapping[str, Scheme], dtype: torch.dtype, windows: list[list[int]]
) -> Iterator[tuple[str, Rounded, torch.Tensor]]:
    """Every matrix of `schemes` by its name, rounded by gptq on these sequences of one length, and the weight that was rounded.

    Memory holds one block and its inputs. Raises Unsupported for a mixture of experts.
    """
    config = source.config
    refuse_experts(config, "--calibrate")
    chosen = windows[:: max(1, len(windows) // SEQUENCES)][:SEQUENCES]
    embedding = fp32(source, "token_embd.weight")
    hidden = [embedding[torch.tensor(tokens)][None] * config.embedding_scale for tokens in chosen]
    del embedding
    positions = all_positions(config, len(chosen[0]))
    for layer in range(config.layers):
        block, places = load_block(source, layer), positions[config.window(layer)]
        moments = _moments(block, hidden, places)
        for first, parts in _INPUTS.items():
            inputs = seen(moments.pop(first))
            for part in parts:
                name = f"blk.{layer}.{part}.weight"
                module: nn.Linear = getattr(block, part)
                rounded, weight = gptq(module.weight, schemes[name], dtype, inputs)
                module.weight.copy_(rounded.values())
                yield name, rounded, weight
        hidden = [block(x, places) for x in hidden]


def _moments(block: Block, hidden: list[torch.Tensor], positions: object) -> dict[str, torch.Tensor]:
    """Second moments [in, in] fp32 of what goes into the matrices, by the first of those that share it."""
    sums: dict[str, torch.Tensor] = {}

    def add(name: str):
        def hook(_: nn.Module, inputs: tuple[torch.Tensor]) -> None:
            rows = inputs[0].flatten(0, -2)
            sums[name] = torch.addmm(sums[name], rows.T, rows) if name in sums else rows.T @ rows

        return hook

    hooks = [getattr(block, name).register_forward_pre_hook(add(name)) for name in _INPUTS]
    for x in hidden:
        block(x, positions)
    for hook in hooks:
        hook.remove()
    return sums
