"""Which weights are stored in how many bits, and which inputs share a scale."""

from __future__ import annotations

from dataclasses import dataclass

from pitstop.errors import ConfigError
from pitstop.models.config import ModelConfig
from pitstop.models.families import by_model_type

GROUPS = (128, 64, 32)
"""Inputs that share a scale where nobody says how many: the first of these that divides a matrix's inputs."""
KERNEL = 32
"""The kernels' groups: other sizes are multiples of it."""
_WHOLE = ("token_embd", "output", "ffn_gate_inp", "ffn_gate_inp_shexp")
"""Matrices that stay in 16 bits: embedding, head, and routers, which are small and choose."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one weight [out, in] is rounded: value = (code - zero) · scale, signed codes of `bits`, by output and group of inputs.

    group: inputs that share a scale; 0: all of an output. symmetric: every zero is 0.
    """

    bits: int
    group: int = 0
    symmetric: bool = True

    @property
    def low(self) -> int:
        return -(1 << self.bits - 1)

    @property
    def high(self) -> int:
        return (1 << self.bits - 1) - 1

    def size(self, inputs: int) -> int:
        """Inputs that share a scale, of so many."""
        return self.group or inputs


def schemes(config: ModelConfig, bits: int, group: int = 0, symmetric: bool = True) -> dict[str, Scheme]:
    """The scheme of every matrix that is rounded, by its name in the decoder. group: 0 for the usual one.

    Raises ConfigError naming the option that cannot be honoured.
    """
    if bits not in (4, 8):
        raise ConfigError(f"--bits {bits}: choose 8 or 4")
    if bits == 8 and group:
        raise ConfigError(f"--group {group}: weights of 8 bits have one scale an output; leave it out, or choose --bits 4")
    if bits == 8 and not symmetric:
        raise ConfigError("--asymmetric: weights of 8 bits are symmetric; leave it out, or choose --bits 4")
    if group < 0 or group % KERNEL:
        raise ConfigError(f"--group {group}: choose a multiple of {KERNEL}, like {', '.join(map(str, GROUPS))}")
    matrices = {name: shape for name, shape in config.tensors().items() if len(shape) == 2 and _part(name) not in _WHOLE}
    return {name: Scheme(bits, _group(config, name, shape[1], bits, group), symmetric) for name, shape in matrices.items()}


def _part(name: str) -> str:
    """ "ffn_gate_exps" of "blk.3.ffn_gate_exps.7.weight"."""
    parts = name.split(".")
    return parts[2] if parts[0] == "blk" else parts[0]


def _group(config: ModelConfig, name: str, inputs: int, bits: int, group: int) -> int:
    if bits == 8:
        if inputs % 4:
            raise ConfigError(f"--bits 8: {_theirs(config, name)} has {inputs} inputs, which do not fill words of 32 bits")
        return 0
    if group:
        if inputs % group:
            widths = sorted({shape[-1] for shape in config.tensors().values() if len(shape) == 2})
            fitting = [str(size) for size in range(KERNEL, min(widths) + 1, KERNEL) if not any(width % size for width in widths)]
            advice = (
                f"choose one that divides all of {widths}, like {', '.join(fitting[-3:])}, or leave it out" if fitting else "leave it out"
            )
            raise ConfigError(f"--group {group} does not divide the {inputs} inputs of {_theirs(config, name)}; {advice}")
        return group
    fitting = [size for size in GROUPS if inputs % size == 0]
    if not fitting:
        raise ConfigError(f"--bits 4: the {inputs} inputs of {_theirs(config, name)} are no multiple of {GROUPS[-1]}; choose --bits 8")
    return fitting[0]


def _theirs(config: ModelConfig, name: str) -> str:
    return by_model_type(config.architecture).hugging_face(name)
