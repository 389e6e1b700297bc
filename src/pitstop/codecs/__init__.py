"""KV codecs: how a sealed segment is stored. One file each; `get` finds one by name."""

from __future__ import annotations

from pitstop.codecs.raw import Raw
from pitstop.errors import ConfigError
from pitstop.types import Codec

_CODECS: dict[str, Codec] = {codec.name: codec for codec in (Raw("raw16"), Raw("raw32"))}


def get(name: str) -> Codec:
    """The codec of that name. Raises ConfigError, listing the names, for an unknown one."""
    if name not in _CODECS:
        raise ConfigError(f"--kv {name}: choose one of {', '.join(_CODECS)}")
    return _CODECS[name]
