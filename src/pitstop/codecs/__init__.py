"""KV codecs: how a sealed segment is stored. One file each; `get` finds one by name."""

from __future__ import annotations

from pitstop.codecs import adaptive8, delta8, int4, int8, raw
from pitstop.codecs.segmented import Segmented
from pitstop.errors import ConfigError
from pitstop.types import Codec

_CODECS: dict[str, Segmented] = {codec.name: codec for module in (raw, int8, int4, adaptive8, delta8) for codec in module.CODECS}


def names() -> list[str]:
    """Of all codecs, raw ones first, baselines last."""
    return list(_CODECS)


def get(spec: str) -> Codec:
    """The codec of that name, or with options after a colon: "int4:keys=5,lead=0" (codecs.segmented.OPTIONS).

    Raises ConfigError, listing the names or the options, for one that does not exist.
    """
    name, colon, options = spec.partition(":")
    if name not in _CODECS:
        raise ConfigError(f"--kv {spec}: choose one of {', '.join(_CODECS)}")
    try:
        return _CODECS[name].with_options(options) if colon else _CODECS[name]
    except ValueError as error:
        raise ConfigError(f"--kv {spec}: {error}") from None
