"""llama.cpp's compressed caches through its own perplexity tool, KL divergence against its own f16 cache, on given windows."""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import peers_install
from engines import _output
from tqdm import tqdm

CACHES = {"q8_0": 8.5, "q4_0": 4.5}
"""Bits a value: blocks of 32 with a 16-bit scale."""
_FIGURES = {
    "kld_mean": r"Mean +KLD: +(\S+)",
    "kld_p999": r"99\.9% +KLD: +(\S+)",
    "same_top": r"Same top p: +(\S+)",
    "ppl_ratio": r"Mean PPL\(Q\)/PPL\(base\) +: +(\S+)",
}


def measure(model: Path, text: str, windows: list[list[int]], threads: int) -> Iterator[tuple[str, float, tuple[float, ...]]]:
    """Each cache's name, bits a value, and mean KL, 99.9 % KL (nats), share of equal top tokens, change of perplexity in per cent.

    windows: the first ones of the text, all of one length; the second half of each is scored. Raises RuntimeError when the tool cuts the
    text differently, or fails.
    """
    peers_install.install(threads)
    context = len(windows[0])
    with tempfile.TemporaryDirectory(dir=peers_install.ROOT) as folder:
        base, file = Path(folder, "base"), Path(folder, "text")
        file.write_text(text[: 32 * context * len(windows)])  # it wants two windows at least
        common = [peers_install.TOOLS / "llama-perplexity", "-m", model, "-f", file, "-c", context, "--chunks", len(windows)]
        common += ["-t", threads, "-fa", "on", "--kl-divergence-base", base]
        for cache in tqdm(("f16", *CACHES), desc=f"llama.cpp, {len(windows)} × {context}", leave=False):
            kind = ["-ctk", cache, "-ctv", cache]
            if cache == "f16":
                _output([*common, *kind])
                _check_tokens(base, windows)
            else:
                yield cache, CACHES[cache], _figures(_output([*common, *kind, "--kl-divergence"]))


def _figures(output: str) -> tuple[float, ...]:
    found = {}
    for name, pattern in _FIGURES.items():
        if (match := re.search(pattern, output)) is None:
            raise RuntimeError(f"llama-perplexity printed no {name}: {output[-1000:]}")
        found[name] = float(match[1])
    return found["kld_mean"], found["kld_p999"], found["same_top"] / 100, 100 * (found["ppl_ratio"] - 1)


def _check_tokens(base: Path, windows: list[list[int]]) -> None:
    """The tool's file of log-probabilities begins with its tokens: "_logits_", context, vocabulary, windows, tokens, all int32."""
    with base.open("rb") as file:
        magic, context, _, count = struct.unpack("<8s3i", file.read(20))
        tokens = np.frombuffer(file.read(4 * context * count), np.int32).reshape(count, context)
    if magic != b"_logits_" or not np.array_equal(tokens, windows):
        raise RuntimeError("llama.cpp cuts the text into other tokens than Pitstop")
