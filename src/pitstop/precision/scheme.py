"""Which weights are stored in how many bits, and which inputs share a scale."""

from __future__ import annotations

from dataclasses import dataclass

from pitstop.errors import ConfigError
from pitstop.models.config import ModelConfig
from pitstop.models.families import by_model_type

GROUPS = {4: (128, 64, 32), 8: (32,)}
"""Inputs that share a scale where nobody says how many, by bits: the first of these that divides a matrix's inputs."""
WHOLE_OUTPUT = -1
"""In the place of a group's size: one scale an output."""
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

    def bits_a_weight(self, inputs: int) -> float:
        """What a file holds for a weight of so many inputs, scales of 16 bits and zeros included."""
        return self.bits + (16 if self.symmetric else 16 + self.bits) / self.size(inputs)


def schemes(config: ModelConfig, bits: int, group: int = 0, symmetric: bool = True) -> dict[str, Scheme]:
    """The scheme of every matrix that is rounded, by its name in the decoder. group: 0 for the usual one, WHOLE_OUTPUT for none.

    Raises ConfigError naming the option that cannot be honoured.
    """
    if bits not in (4, 8):
        raise ConfigError(f"--bits {bits}: choose 8 or 4")
    if bits == 8 and not symmetric:
        raise ConfigError("--asymmetric: weights of 8 bits are symmetric; leave it out, or choose --bits 4")
    if group != WHOLE_OUTPUT and (group < 0 or group % KERNEL):
        sizes = ", ".join(map(str, GROUPS[4]))
        raise ConfigError(f"--group {group}: choose a multiple of {KERNEL}, like {sizes}, or {WHOLE_OUTPUT} for one scale an output")
    matrices = {name: shape for name, shape in config.tensors().items() if len(shape) == 2 and _part(name) not in _WHOLE}
    return {name: Scheme(bits, _group(config, name, shape[1], bits, group), symmetric) for name, shape in matrices.items()}


def _part(name: str) -> str:
    """ "ffn_gate_exps" of "blk.3.ffn_gate_exps.7.weight"."""
    parts = name.split(".")
    return parts[2] if parts[0] == "blk" else parts[0]


def _group(config: ModelConfig, name: str, inputs: int, bits: int, group: int) -> int:
    if group > 0:
        if inputs % group:
            widths = sorted({shape[-1] for shape in config.tensors().values() if len(shape) == 2})
            fitting = [str(size) for size in range(KERNEL, min(widths) + 1, KERNEL) if not any(width % size for width in widths)]
            advice = (
                f"choose one that divides all of {widths}, like {', '.join(fitting[-3:])}, or leave it out" if fitting else "leave it out"
            )
            raise ConfigError(f"--group {group} does not divide the {inputs} inputs of {_theirs(config, name)}; {advice}")
        return group
    fitting = [] if group == WHOLE_OUTPUT else [size for size in GROUPS[bits] if inputs % size == 0]
    if fitting:
        return fitting[0]
    if bits == 4 and group != WHOLE_OUTPUT:
        raise ConfigError(f"--bits 4: the {inputs} inputs of {_theirs(config, name)} are no multiple of {KERNEL}; choose --bits 8")
    if inputs % (32 // bits):
        raise ConfigError(f"--bits {bits}: {_theirs(config, name)} has {inputs} inputs, which do not fill words of 32 bits")
    return 0


def _theirs(config: ModelConfig, name: str) -> str:
    return by_model_type(config.architecture).hugging_face(name)
