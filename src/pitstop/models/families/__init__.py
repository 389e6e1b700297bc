"""The families of models, a file each: what a checkpoint's keys mean, and what its tensors are called. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection

from pitstop.models.families import bert, gemma2, gemma3, grok1, grok2, llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, roberta
from pitstop.models.families.family import Family

DECODERS = tuple(module.FAMILY for module in (llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma2, gemma3, grok1, grok2))
ENCODERS = (bert.FAMILY, roberta.ROBERTA, roberta.XLM_ROBERTA)
FAMILIES = DECODERS + ENCODERS


def by_model_type(name: object, architectures: Collection[object] = ()) -> Family | None:
    """The family of a config.json."""
    named = next((family for family in FAMILIES if any(kind in family.architectures for kind in architectures)), None)
    return named or next((family for family in FAMILIES if family.name == name), None)


def by_gguf(architecture: object, experts: bool = False) -> Family | None:
    """The family of a GGUF file of this architecture, with `experts` or without."""
    named = [family for family in FAMILIES if family.gguf is not None and family.gguf == architecture]
    return next((family for family in named if family.gguf_experts == experts), named[0] if named else None)
