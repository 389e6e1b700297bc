"""What rounding cost: a model's distributions beside those of the model that it was made of, both from the engine that serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from tqdm import tqdm

from pitstop.config import EngineConfig, KVConfig
from pitstop.engine.core import Engine
from pitstop.engine.protocol import score_rows
from pitstop.models.weights.source import open_model
from pitstop.stats import Agreement, Comparison
from pitstop.types import SEGMENT, Request, SamplingParams

MOST = 32
"""Sequences that are measured on, spread over what is held out."""


def measure(reference: Path, models: Mapping[str, Path], windows: list[list[int]], threads: int = 0) -> dict[str, Agreement]:
    """How near each of the models is to the reference on these sequences, by its name. Caches are in fp32: only the weights differ."""
    chosen = windows[:: max(1, len(windows) // MOST)][:MOST]
    longest = max(map(len, chosen))
    base = _engine(reference, longest, threads)
    comparisons = {name: Comparison() for name in models}
    with tqdm(total=len(models) * len(chosen), unit="sequence", desc="measuring") as bar:
        for name, path in models.items():
            engine = _engine(path, longest, threads)
            for window in chosen:
                for start, (expected, found) in _pairs(base, engine, window):
                    targets = np.array(window[start + 1 : start + 1 + len(expected)])
                    comparisons[name].add(expected[: len(targets)], found[: len(targets)], targets)
                bar.update()
    return {name: comparison.agreement() for name, comparison in comparisons.items()}


def _engine(path: Path, longest: int, threads: int) -> Engine:
    source = open_model(path)
    context = min(source.config.context, longest + SEGMENT)
    kv = KVConfig(codec="raw32", context=context, guard="off")
    return Engine(EngineConfig(model=str(path), threads=threads, prefill_chunk=SEGMENT, max_running=1, kv=kv), source)


def _pairs(base: Engine, engine: Engine, window: list[int]) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
    """The first position of some rows, and both models' logits of them."""
    start = 0
    for rows in zip(_logits(base, window), _logits(engine, window), strict=True):
        yield start, rows
        start += len(rows[0])


def _logits(engine: Engine, window: list[int]) -> Iterator[np.ndarray]:
    """[rows, vocab] fp32, as many rows at a time as one request may score; the prefix cache has what came before."""
    rows = score_rows(engine.vocab_size)
    for start in range(0, len(window), rows):
        request = Request(id=str(start), prompt=window[: start + rows], params=SamplingParams(max_tokens=0), score_from=start)
        engine.submit(request)
        while engine.busy:
            for output in engine.step():
                if output.logits:
                    yield np.frombuffer(output.logits, "<f4").reshape(-1, engine.vocab_size)
