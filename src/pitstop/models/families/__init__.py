"""The decoder families, a file each: what a checkpoint's keys mean, and what its tensors are called. Imports no torch."""

from __future__ import annotations

from pitstop.models.families import gemma2, gemma3, llama, mistral, qwen2, qwen3
from pitstop.models.families.family import Family

FAMILIES = tuple(module.FAMILY for module in (llama, mistral, qwen2, qwen3, gemma2, gemma3))


def by_model_type(name: object) -> Family | None:
    return next((family for family in FAMILIES if family.name == name), None)


def by_gguf(architecture: object) -> Family | None:
    return next((family for family in FAMILIES if family.gguf is not None and family.gguf == architecture), None)
