"""How many texts and tokens a second does an encoder embed here, beside transformers on the same folder?

    python bench/embeddings.py FOLDER [--rounds 7] [--threads 0]

FOLDER is an encoder as sentence-transformers writes it (docs/embeddings.md says where one is to be had). One text and 32 at once, as
questions (about 12 tokens), passages (about 120) and both mixed; transformers pads its batches to the longest text, as
sentence-transformers does. Printed: the median of `rounds` rounds, taken in turns, and the ratio. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from pitstop import LLM
from pitstop.config import usable_cores

WORDS = (Path(__file__).parents[1] / "LICENSE").read_text().split()
QUESTION, PASSAGE = 8, 80
"""Words of a text."""


def texts(words: int, count: int) -> list[str]:
    return [" ".join(WORDS[number * 37 % 900 :][: words + number % 5]) for number in range(count)]


CASES = {
    "1 question": texts(QUESTION, 1),
    "1 passage": texts(PASSAGE, 1),
    "32 questions": texts(QUESTION, 32),
    "32 passages": texts(PASSAGE, 32),
    "32 mixed": [text for pair in zip(texts(QUESTION, 16), texts(PASSAGE, 16), strict=True) for text in pair],
}


def theirs(folder: str, llm: LLM) -> Callable[[list[str]], np.ndarray]:
    """transformers with padding and its fastest attention; pooled as `llm` does."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    embedding = llm.embedding

    @torch.inference_mode()
    def embed(batch: list[str]) -> np.ndarray:
        given = tokenizer(batch, padding=True, truncation=False, return_tensors="pt")
        hidden, mask = model(**given).last_hidden_state, given["attention_mask"][..., None]
        pooled = hidden[:, 0] if embedding.pooling == "cls" else (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(pooled).numpy() if embedding.normalize else pooled.numpy()

    return embed


def median_times(sides: dict[str, Callable[[list[str]], np.ndarray]], batch: list[str], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(rounds + 1):
        for name, embed in sides.items():
            begin = time.perf_counter()
            embed(batch)
            if round_:  # the first is a warm-up
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    threads = options.threads or usable_cores()
    llm = LLM(options.folder, threads=threads)
    torch.set_num_threads(threads)
    sides = {"pitstop": llm.embed, "transformers": theirs(options.folder, llm)}
    print(f"{options.folder}: {threads} threads; texts/s, tokens/s")
    print(f"{'':14}{'tokens':>8}{'pitstop':>20}{'transformers':>20}{'ratio':>8}{'apart':>9}")
    found = {}
    for name, batch in CASES.items():
        tokens = sum(len(llm.tokenizer.encode_text(text)) for text in batch)
        apart = float(np.abs(sides["pitstop"](batch) - sides["transformers"](batch)).max())
        times = median_times(sides, batch, options.rounds)
        ratio = times["transformers"] / times["pitstop"]
        rates = [f"{len(batch) / times[side]:.1f}, {tokens / times[side]:.0f}" for side in sides]
        print(f"{name:14}{tokens:>8}{rates[0]:>20}{rates[1]:>20}{ratio:>8.2f}{apart:>9.0e}")
        found[name] = {"tokens": tokens, "texts": len(batch), "seconds": times, "ratio": ratio, "apart": apart}
    print(json.dumps({"bench": "embeddings", "model": options.folder, "threads": threads, "cases": found}))


if __name__ == "__main__":
    main()
