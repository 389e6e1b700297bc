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
from pathlib import Path

import msgspec

from pitstop.errors import ConfigError


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
    """`failures`: required cases that may fail."""

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
    """Slopes: the upper end of their confidence interval. Memory is anonymous memory of all the server's processes together, in KiB."""

    memory_kb_per_request: float | None = 0.25
    handles_per_hour: float | None = 1
    threads_per_hour: float | None = 1
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
    """The limits of a file; the defaults without one. Raises ConfigError that names file and field."""
    if path is None:
        return SLO()
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=SLO)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None
