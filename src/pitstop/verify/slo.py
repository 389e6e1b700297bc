"""The limits of a verdict, read from a YAML file. A limit that is left out has its default; null is not judged.

load:
  e2e_p95_ms: 700
  within_ms: 1000
  within_share: 0.9995
soak:
  memory_kb_per_request: 0.25
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pitstop.errors import ConfigError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 64 << 10
MAX_DEPTH = 8
FILE = "the file"
LIKE = ("e2e_p95_ms: 700", "load:")


class _Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every limit is a finite number, not negative; those called share lie in [0, 1]."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or (value is not None and (not math.isfinite(value) or value < 0)):
                raise ValueError(f"{name} must be a number of at least 0, got {value}")
            if "share" in name.split("_") and value is not None and value > 1:
                raise ValueError(f"{name} is a share: it lies between 0 and 1, got {value:g}")


class FunctionalLimits(_Limits):
    """`failures`: cases that may fail; an optional feature that the server refuses by name is no failure."""

    failures: int | None = 0


class LoadLimits(_Limits):
    """Latencies in milliseconds from the intended send time. At least `within_share` of all requests end within `within_ms`."""

    e2e_p95_ms: float | None = 700
    within_ms: float | None = 1000
    within_share: float | None = 0.9995
    ttft_p95_ms: float | None = None
    itl_p95_ms: float | None = None
    error_share: float | None = 0


class SoakLimits(_Limits):
    """Slopes: the upper end of their confidence interval. Memory is anonymous memory of all the server's processes together, in KiB.

    `gpu_errors` holds for uncorrected memory errors, Xid events and link errors, each.
    """

    memory_kb_per_request: float | None = 0.25
    handles_per_hour: float | None = 1
    threads_per_hour: float | None = 1
    gpu_memory_kb_per_request: float | None = 0.25
    gpu_errors: int | None = 0
    drifted_answers: int | None = 0
    restarts: int | None = 0
    error_share: float | None = 0


class QualityLimits(_Limits):
    """B against A. Divergences in nats; `perplexity_rise` relative: 0.01 is 1 %; `length_drift` of mean answer lengths, relative."""

    mean_kl: float | None = 0.002
    kl_p999: float | None = None
    same_top_share: float | None = None
    perplexity_rise: float | None = 0.01
    flipped_share: float | None = None
    length_drift: float | None = None


class SLO(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All limits."""

    functional: FunctionalLimits = FunctionalLimits()
    load: LoadLimits = LoadLimits()
    soak: SoakLimits = SoakLimits()
    quality: QualityLimits = QualityLimits()


def read_slo(path: Path | None) -> SLO:
    """The limits of a file; the defaults without one. Raises ConfigError that names file, line and field."""
    if path is None:
        return SLO()
    root = _compose(path)
    try:
        return msgspec.convert(_plain(path, root), SLO)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".")
        if found := re.search(r"unknown field `(.*)`", message):
            message, field = "there is no such limit", f"{field}.{found[1]}".lstrip(".")
        elif found := re.match(r"(\w+) (must be|is a share)", message):  # ours, raised for the section as a whole
            message, field = message.removeprefix(f"{found[1]} "), f"{field}.{found[1]}"
        raise ConfigError(f"{path}:{_line(root, field)}: {' '.join(f'{field}: {message}'.split())}") from None


def _compose(path: Path) -> yaml.Node:
    """The file as YAML nodes, which know their lines; one document without aliases."""
    import yaml

    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ConfigError(f"{path}: over {MAX_BYTES >> 10} KiB; a file of limits is short")
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent):
                raise ConfigError(f"{path}:{line}: aliases (*{event.anchor}) are not taken; write the limit out")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ConfigError(f"{path}:{line}: nested too deeply for a file of limits")
        root = yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = (error.problem_mark or error.context_mark).line + 1
        raise ConfigError(f"{path}:{line}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:  # bytes that are no text
        raise ConfigError(f"{path}: not YAML: {str(error).splitlines()[0]}") from None
    if root is None:
        raise ConfigError(f"{path}: holds no limits; without a file the defaults apply")
    return root


def _plain(path: Path, root: yaml.Node) -> dict[str, Any]:
    """The nodes as Python values: names of tiers, names of limits, scalars. A name given twice is an error: YAML would take the last."""
    import yaml

    def fields(node: yaml.Node, name: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{path}:{node.start_mark.line + 1}: {name} must hold names and values, like {LIKE[name == FILE]}")
        found = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in found:
                raise ConfigError(f"{path}:{key.start_mark.line + 1}: {name} has a name twice, or one that is none")
            found[key.value] = value
        return found

    def scalar(node: yaml.Node) -> Any:
        try:
            return yaml.constructor.SafeConstructor().construct_document(node)
        except yaml.MarkedYAMLError as error:
            raise ConfigError(f"{path}:{error.problem_mark.line + 1}: {error.problem}") from None
        except (ValueError, IndexError) as error:  # a date or a number that is none
            raise ConfigError(f"{path}:{node.start_mark.line + 1}: {error}") from None

    tiers = fields(root, FILE).items()
    return {tier: {name: scalar(value) for name, value in fields(node, tier).items()} for tier, node in tiers}


def _line(root: yaml.MappingNode, field: str) -> int:
    """Where the field "load.e2e_p95_ms" is written."""
    line = root.start_mark.line
    for name in field.split("."):
        for key, value in root.value:
            if key.value == name:
                line, root = key.start_mark.line, value
                break
    return line + 1
