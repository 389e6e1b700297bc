"""Gemma 3's text models (Gemma Team 2025): Gemma 2 without caps on attention, q and k normalised, five local layers to a global one."""

from __future__ import annotations

from dataclasses import replace

from pitstop.models.config import ModelConfig
from pitstop.models.families.family import Family, dense, windows
from pitstop.models.families.gemma2 import GEMMA_BLOCK, HEAD_DIM, NORM_OFFSET, cap, gemma
from pitstop.models.keys import Keys
from pitstop.models.rope import Linear, Rope
from pitstop.models.rope_keys import read_rope

_LARGEST = 62


def read(keys: Keys) -> ModelConfig:
    rope, local = _ropes(keys, keys.integer("head_dim", HEAD_DIM))
    if isinstance(rope.scaling, Linear):  # stated with the length that it reaches
        rope = replace(rope, scaling=replace(rope.scaling, stretches=False))
    pattern = keys.integer("sliding_window_pattern", keys.integer("_sliding_window_pattern", 6))
    return dense(
        keys,
        **gemma(keys, _LARGEST),
        rope=rope,
        local_rope=local,
        qk_norm=True,
        windows=windows(keys, keys.integer("sliding_window", 4096), lambda layer: (layer + 1) % pattern > 0),
        logit_softcap=cap(keys, "final_logit_softcapping", 0.0),
    )


def _ropes(keys: Keys, head_dim: int) -> tuple[Rope, Rope]:
    """The global layers' and the local ones'."""
    theta, base = keys.number("rope_theta", 1e6), keys.number("rope_local_base_freq", 10000.0)
    parameters = keys.get("rope_parameters", {})
    if isinstance(parameters, dict) and parameters.keys() & {"full_attention", "sliding_attention"}:
        if unknown := parameters.keys() - {"full_attention", "sliding_attention"}:
            raise keys.refuse("rope_parameters", f"has {', '.join(sorted(unknown))} beside full_attention and sliding_attention")
        return read_rope(keys, head_dim, theta, "full_attention"), read_rope(keys, head_dim, base, "sliding_attention")
    return read_rope(keys, head_dim, theta), Rope(base)


FAMILY = Family("gemma3_text", read, gguf="gemma3", norm_offset=NORM_OFFSET, block=GEMMA_BLOCK)
