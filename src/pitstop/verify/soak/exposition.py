"""Prometheus' text format, as far as it is needed: the values of samples by name and labels."""

from __future__ import annotations

import re

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Samples = dict[str, list[tuple[dict[str, str], float]]]


def parse(text: str) -> Samples:
    """Samples by their metric's name. Lines that make no sense are left out."""
    samples: Samples = {}
    for line in text.splitlines():
        if found := _SAMPLE.match(line):
            try:
                samples.setdefault(found[1], []).append((dict(_LABEL.findall(found[2] or "")), float(found[3])))
            except ValueError:
                continue
    return samples


def total(samples: Samples, wanted: str) -> float | None:
    """The sum of the samples that match `name` or `name{label="value",…}`; None when there are none."""
    name, _, labels = wanted.partition("{")
    required = dict(_LABEL.findall(labels))
    values = [value for given, value in samples.get(name, ()) if required.items() <= given.items()]
    return sum(values) if values else None
