"""Answers held against the clients' own types, to the letter."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, TypeAdapter


def strictly(kind: Any, value: Any) -> Any:
    """`value` as the client's type, which must know each of its fields."""
    parsed = TypeAdapter(kind).validate_python(value)
    _no_extra(parsed, "")
    return parsed


def _no_extra(value: Any, path: str) -> None:
    if isinstance(value, BaseModel):
        assert not value.model_extra, f"{path}: {type(value).__name__} knows no {sorted(value.model_extra)}"
        for name in type(value).model_fields:
            _no_extra(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _no_extra(item, f"{path}[{number}]")
