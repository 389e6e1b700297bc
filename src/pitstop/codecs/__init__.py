"""KV codecs: how a sealed segment is stored. One file each; `get` finds one by name."""

from __future__ import annotations

from pitstop.codecs import adaptive8, delta8, int4, int8, raw
from pitstop.errors import ConfigError
from pitstop.types import Codec

_CODECS: dict[str, Codec] = {codec.name: codec for module in (raw, int8, int4, adaptive8, delta8) for codec in module.CODECS}


def get(name: str) -> Codec:
    """The codec of that name. Raises ConfigError, listing the names, for an unknown one."""
    if name not in _CODECS:
        raise ConfigError(f"--kv {name}: choose one of {', '.join(_CODECS)}")
    return _CODECS[name]
