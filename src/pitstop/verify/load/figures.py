"""From records to numbers. Latencies in milliseconds from the intended send time; what failed took for ever."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from pitstop.stats.intervals import percentile_interval, rank_percentile, wilson_interval
from pitstop.verify.load.records import Record
from pitstop.verify.load.session import Measured
from pitstop.verify.slo import LoadLimits

PERCENTS = (50, 90, 95, 99)


@dataclass(frozen=True)
class Figures:
    """Of all requests, in order: `e2e` and `ttft` float64 [requests], inf for a failed answer or one without text. `itl`: all gaps
    between pieces of text in whole answers, float64 [gaps]. `within`: requests that ended well within the limit of time."""

    measured: Measured
    e2e: np.ndarray
    ttft: np.ndarray
    itl: np.ndarray
    within: int
    good: int

    @property
    def records(self) -> list[Record]:
        return self.measured.records

    @property
    def whole(self) -> list[Record]:
        return [record for record in self.records if not record.error]

    @property
    def errors(self) -> dict[str, int]:
        """How many by kind, the most frequent first."""
        return dict(Counter(record.error for record in self.records if record.error).most_common())

    @property
    def cached_share(self) -> float:
        """Prompt tokens that the server says it had cached, of all."""
        prompt = sum(record.prompt_tokens or 0 for record in self.whole)
        return sum(record.cached_tokens or 0 for record in self.whole) / prompt if prompt else 0.0

    @property
    def one_token_share(self) -> float:
        """Whole answers that had as many pieces of text as tokens: between their pieces lie the gaps between tokens."""
        return sum(len(record.pieces) == record.answer_tokens for record in self.whole) / len(self.whole) if self.whole else 0.0

    def as_json(self) -> dict:
        """For the report. A latency of a failed answer is null."""
        seconds, whole = self.measured.seconds, self.whole
        answer = sum(record.answer_tokens or 0 for record in whole)
        low, high = wilson_interval(self.good, len(self.records))
        rate = len(self.records) / seconds
        return {
            "requests": len(self.records),
            "seconds": seconds,
            "offered_per_s": self.measured.planned / max(record.intended for record in self.records) if self.open_loop else None,
            "requests_per_s": len(whole) / seconds,
            "answer_tokens_per_s": answer / seconds,
            "prompt_tokens_per_s": sum(record.prompt_tokens or 0 for record in whole) / seconds,
            "goodput_per_s": self.good / seconds,
            "goodput_interval": [low * rate, high * rate],
            "good": self.good,
            "within": self.within,
            "errors": self.errors,
            "prompt_tokens": _by_kind(self.records, "prompt_tokens"),
            "answer_tokens": _by_kind(self.records, "answer_tokens"),
            "cached_tokens": sum(record.cached_tokens or 0 for record in whole),
            "one_token_a_piece": self.one_token_share,
            "late_ms_p99": 1000 * rank_percentile([record.sent - record.intended for record in self.records], 99),
            "e2e_ms": summarise(self.e2e),
            "ttft_ms": summarise(self.ttft),
            "itl_ms": summarise(self.itl),
            "ms_per_token": summarise(np.array([value for record in whole if (value := per_token(record)) is not None])),
            "e2e_ms_by_kind": {kind: summarise(self.e2e[places]) for kind, places in self.kinds().items()},
        }

    @property
    def open_loop(self) -> bool:
        return not self.measured.schedule.clients and max(record.intended for record in self.records) > 0

    def kinds(self) -> dict[str, list[int]]:
        """Places of the records of each shape, in the mix's order of length."""
        names = sorted({record.kind for record in self.records}, key=lambda name: (len(name), name))
        return {name: [place for place, record in enumerate(self.records) if record.kind == name] for name in names}


def compute(measured: Measured, limits: LoadLimits) -> Figures:
    """A request is good when it ended well and within every limit of time that is stated for requests: `within_ms`, or `e2e_p95_ms`
    where there is none, and `ttft_p95_ms`."""
    records = measured.records
    e2e = np.array([math.inf if record.error else 1000 * (record.end - record.intended) for record in records])
    ttft = np.array([math.inf if record.first is None else 1000 * (record.first - record.intended) for record in records])
    gaps = [np.diff(record.pieces) for record in records if not record.error and len(record.pieces) > 1]
    within = np.isfinite(e2e) & (e2e <= (limits.within_ms or math.inf))
    longest = limits.within_ms if limits.within_ms is not None else limits.e2e_p95_ms
    good = np.isfinite(e2e)
    if longest is not None:
        good &= e2e <= longest
    if limits.ttft_p95_ms is not None:
        good &= ttft <= limits.ttft_p95_ms
    return Figures(measured, e2e, ttft, 1000 * np.concatenate(gaps) if gaps else np.array([]), int(within.sum()), int(good.sum()))


def summarise(values: np.ndarray) -> dict | None:
    """Percentiles and the 95 % interval of each; None for no values. Infinite ones become null."""
    if not values.size:
        return None
    found: dict = {f"p{percent}": finite(rank_percentile(values, percent)) for percent in PERCENTS}
    for percent in PERCENTS:
        found[f"p{percent}_interval"] = [finite(end) for end in percentile_interval(values, percent)]
    return found | {"mean": finite(float(values.mean())), "max": finite(float(values.max())), "count": int(values.size)}


def per_token(record: Record) -> float | None:
    """Milliseconds a token after the first, from the count of the usage; None for an answer of one token."""
    if record.first is None or (record.answer_tokens or 0) < 2:
        return None
    return 1000 * (record.pieces[-1] - record.first) / (record.answer_tokens - 1)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _by_kind(records: list[Record], field: str) -> dict:
    """Mean, least and most tokens of each shape, as the server counted."""
    found = {}
    for kind in sorted({record.kind for record in records}, key=lambda name: (len(name), name)):
        values = [value for record in records if record.kind == kind and (value := getattr(record, field)) is not None]
        if values:
            found[kind] = {"mean": sum(values) / len(values), "least": min(values), "most": max(values)}
    return found
