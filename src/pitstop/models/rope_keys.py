"""Which RoPE a model's keys ask for: `rope_scaling` with `rope_theta` beside it, or `rope_parameters` with it inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pitstop.models.keys import Keys
from pitstop.models.rope import DynamicNTK, Linear, Llama3, LongRope, Rope, Scaling, Yarn, longrope_attention, yarn_attention


def read_rope(keys: Keys, dim: int, theta: float, part: str = "") -> Rope:
    """The RoPE of heads of `dim`; theta: where the parameters state none. part: read what `rope_parameters` holds under this name.

    Raises WeightsError for a type that we do not have, and for a parameter that the type does not have.
    """
    if keys.get("rope_scaling") and keys.get("rope_parameters"):
        raise keys.refuse("rope_scaling", "stands beside rope_parameters; keep one of them")
    name = "rope_scaling" if keys.get("rope_scaling") else "rope_parameters"
    parameters = _object(keys, name)
    if part:
        parameters = _object(parameters, part)
    theta = parameters.number("rope_theta", theta)
    kind, old_kind = parameters.get("rope_type"), parameters.get("type")
    if kind and old_kind and kind != old_kind:
        raise parameters.refuse("rope_type", f"stands beside type = {old_kind!r}; keep one of them")
    kind = kind or old_kind or "default"
    if not isinstance(kind, str) or kind not in _KINDS:
        raise parameters.refuse("rope_type" if parameters.get("rope_type") else "type", f"is not known; we have {', '.join(_KINDS)}")
    if parameters.number("partial_rotary_factor", 1.0) != 1 or keys.number("partial_rotary_factor", 1.0) != 1:
        raise parameters.refuse("partial_rotary_factor", "(or the one beside) is not honoured yet; choose a model that rotates whole heads")
    scaling = _KINDS[kind](parameters, keys, dim)
    parameters.refuse_unread({"finetuned"})
    return Rope(theta, scaling)


def _object(keys: Keys, name: str) -> Keys:
    value = keys.get(name, {})
    if not isinstance(value, dict):
        raise keys.refuse(name, "is not an object")
    return keys.within(name, value)


def _original(parameters: Keys, keys: Keys) -> int:
    """Tokens of the context before it was stretched."""
    inside = parameters.integer("original_max_position_embeddings", keys.integer("max_position_embeddings"))
    return keys.integer("original_max_position_embeddings", inside)


def _plain(parameters: Keys, keys: Keys, dim: int) -> None:
    for name in ("factor", "attention_factor"):  # stated with plain RoPE by some, without effect at 1
        if parameters.number(name, 1.0) != 1:
            raise parameters.refuse(name, "goes with no type")


def _linear(parameters: Keys, keys: Keys, dim: int) -> Linear:
    return Linear(parameters.number("factor"))


def _dynamic(parameters: Keys, keys: Keys, dim: int) -> DynamicNTK:
    positions = keys.integer("max_position_embeddings")
    if parameters.integer("original_max_position_embeddings", positions) != positions:
        raise parameters.refuse("original_max_position_embeddings", f"differs from max_position_embeddings = {positions}")
    return DynamicNTK(parameters.number("factor"), positions)


def _yarn(parameters: Keys, keys: Keys, dim: int) -> Yarn:
    original = _original(parameters, keys)
    factor = parameters.number("factor", keys.integer("max_position_embeddings") / original)
    growths = [parameters.number(name, 0.0) for name in ("mscale", "mscale_all_dim")]
    return Yarn(
        factor=factor,
        original=original,
        attention=parameters.number("attention_factor", yarn_attention(factor, *growths)),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        truncate=parameters.flag("truncate", True),
    )


def _llama3(parameters: Keys, keys: Keys, dim: int) -> Llama3:
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    if high <= low:
        raise parameters.refuse("high_freq_factor", f"is not above low_freq_factor = {low}")
    return Llama3(parameters.number("factor"), low, high, _original(parameters, keys))


def _longrope(parameters: Keys, keys: Keys, dim: int) -> LongRope:
    original = _original(parameters, keys)
    factor = parameters.number("factor", keys.integer("max_position_embeddings") / original)
    short, long = (_divisors(parameters, name, dim) for name in ("short_factor", "long_factor"))
    return LongRope(short, long, original, parameters.number("attention_factor", longrope_attention(factor, original)))


def _divisors(parameters: Keys, name: str, dim: int) -> tuple[float, ...]:
    value: Any = parameters.get(name)
    sound = isinstance(value, list) and len(value) == dim // 2 and all(isinstance(x, int | float) and x > 0 for x in value)
    if not sound:
        raise parameters.refuse(name, f"is not a list of {dim // 2} positive numbers, one for each pair of a head")
    return tuple(map(float, value))


_KINDS: dict[str, Callable[[Keys, Keys, int], Scaling | None]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,  # its name in early checkpoints
}
